"""What a forward over many rows costs on one GPU, for llama-shaped decoders with random weights in bfloat16.

    python bench/scale/step_cost.py --json OUT.json
    python bench/scale/step_cost.py --json OUT.json --smoke      # tiny shapes, on a CPU, without graphs

One step: `batch` sequences, each with `context` tokens in a static KV cache and `rows` new rows that see the prefix and
those before them; embedding, all layers, output head and argmax of every row, as one CUDA graph, replayed. Plain torch:
nothing of this package is imported, so that the script runs on a bare machine. What does not fit one GPU (70B) is
measured with a few layers, twice, so that a layer's cost is the difference. A tensor-parallel shard is one rank's part
of every matrix WITHOUT the communication between ranks.

The attention of every point is the fastest of three ways to the same result (flash only where no mask is needed, which
is one row a sequence: nothing here flatters many rows). Groups with a `rank` put a low-rank adapter beside every
matrix, for all rows, as an upper bound: a gated adapter serves the mask rows only. Norms, rotations and activations are
kernels of their own here; an engine that fuses them has a smaller constant part in every step, drafting or not.

Points come in order of importance; when `--seconds` are over, the rest is left out and the JSON says so.
"""

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from stridelm.files import write_json

RANK = 64
MOST_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder, or one tensor-parallel rank's part of it."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tensor_parallel: int = 1

    def shard(self, ranks: int) -> "Shape":
        """The part of one of so many ranks; the hidden size stays whole."""
        return replace(
            self, inner=self.inner // ranks, heads=self.heads // ranks, kv_heads=self.kv_heads // ranks,
            vocabulary=self.vocabulary // ranks, tensor_parallel=ranks,
        )  # fmt: skip


SMALL = Shape("135M", 30, 576, 1536, 9, 3, 64, 49152)
MIDDLE = Shape("8B", 32, 4096, 14336, 32, 8, 128, 128256)
LARGE = Shape("70B", 80, 8192, 28672, 64, 8, 128, 128256)
BATCHES, CONTEXTS = (1, 8, 32, 64), (2048, 512)
ROWS = (1, 2, 4, 5, 8, 9, 16, 25, 36, 64, 81)
SHARD_ROWS = (1, 2, 4, 5, 9, 16, 25, 64)


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one decoder: weights are made once."""

    shape: Shape
    layers: int
    contexts: tuple[int, ...] = CONTEXTS
    batches: tuple[int, ...] = BATCHES
    rows: tuple[int, ...] = ROWS
    rank: int = 0
    """Of the adapter beside every matrix; 0: none."""

    def points(self) -> Iterator[tuple[int, int, int]]:
        for context in self.contexts:
            for batch in self.batches:
                for rows in self.rows:
                    if batch * rows <= MOST_ROWS:
                        yield batch, rows, context


def groups(smoke: bool) -> list[Group]:
    if smoke:
        tiny = Shape("tiny", 2, 32, 48, 4, 2, 8, 64)
        grid: dict[str, Any] = {"contexts": (16,), "batches": (1, 2), "rows": (1, 3)}
        return [
            Group(tiny, 2, **grid), Group(tiny, 1, **grid), Group(tiny, 2, rank=4, **grid),
            Group(tiny.shard(2), 2, **grid),
        ]  # fmt: skip
    long, drafting = CONTEXTS[:1], tuple(rows for rows in ROWS if rows > 1)
    shards = [LARGE.shard(ranks) for ranks in (8, 4, 2)]
    return [
        Group(MIDDLE, MIDDLE.layers),
        *(Group(LARGE, layers) for layers in (4, 8)),
        Group(MIDDLE, MIDDLE.layers, long, rows=drafting, rank=RANK),
        *(Group(shard, layers, long, rows=SHARD_ROWS) for shard in shards for layers in (4, 8)),
        Group(SMALL, SMALL.layers),
        *(Group(LARGE, layers, long, rows=drafting, rank=RANK) for layers in (4, 8)),
    ]


class Linear:
    """A matrix, with or without a low-rank adapter beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int, like: Tensor) -> None:
        self.weight = _random(outputs, inputs, like=like)
        self.down = _random(rank, inputs, like=like) if rank else None
        self.up = _random(outputs, rank, like=like) if rank else None

    def __call__(self, x: Tensor) -> Tensor:
        out = functional.linear(x, self.weight)
        if self.down is None or self.up is None:
            return out
        return out.addmm_(functional.linear(x, self.down), self.up.t())


class Layer:
    def __init__(self, shape: Shape, rank: int, like: Tensor) -> None:
        width = shape.heads * shape.head_size
        self.kv_width = shape.kv_heads * shape.head_size
        # Of q, k and v at once: an adapter for each of the three.
        self.qkv = Linear(shape.hidden, width + 2 * self.kv_width, 3 * rank, like)
        self.output = Linear(width, shape.hidden, rank, like)
        self.gate_up = Linear(shape.hidden, 2 * shape.inner, 2 * rank, like)
        self.down = Linear(shape.inner, shape.hidden, rank, like)
        self.norms = [torch.ones(shape.hidden, dtype=like.dtype, device=like.device) for _ in range(2)]


Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""q (batch, kv_heads, group x rows, size), k, v (batch, kv_heads, slots, size), mask (group x rows, slots) -> as q."""


def by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + mask
    return torch.matmul(torch.softmax(scores, -1), v)


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, mask.expand(q.shape[0], q.shape[1], -1, -1))


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Without the mask: right only where every row sees every slot."""
    del mask
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if q.is_cuda else SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v)


def attentions(rows: int) -> dict[str, Attention]:
    masked: dict[str, Attention] = {"products": by_products, "efficient": efficient}
    return masked | {"flash": flash} if rows == 1 else masked


class Decoder:
    def __init__(self, group: Group, device: str) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.shape, self.device, self.like = group.shape, device, torch.zeros((), dtype=dtype, device=device)
        shape = group.shape
        self.embedding = _random(shape.vocabulary, shape.hidden, like=self.like)
        self.head = Linear(shape.hidden, shape.vocabulary, 0, self.like)
        self.layers = [Layer(shape, group.rank, self.like) for _ in range(group.layers)]
        # One cache for all points, viewed as each needs it; one for every layer: a GPU's own cache must not hold it.
        most = max(batch * _padded(context + rows) for batch, rows, context in group.points())
        size = 2 * most * shape.kv_heads * shape.head_size
        self.caches = [_random(size, like=self.like) for _ in self.layers]

    def step(self, batch: int, rows: int, context: int, attention: Attention) -> Callable[[], Tensor]:
        """A function without arguments: one step, always over the same memory."""
        shape, count = self.shape, batch * rows
        group, slots = shape.heads // shape.kv_heads, context + rows
        ids = torch.randint(shape.vocabulary, (count,), device=self.device)
        cosine, sine = self._rotation(batch, rows, context)
        mask = self.mask(rows, context, group)
        held = (2, batch, shape.kv_heads, _padded(slots), shape.head_size)
        caches = [cache[: torch.Size(held).numel()].view(held) for cache in self.caches]

        def attend(layer: Layer, cache: Tensor, x: Tensor) -> Tensor:
            heads = layer.qkv(x).view(count, -1, shape.head_size)
            turned = heads[:, : shape.heads + shape.kv_heads]
            halves = turned.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
            turned = torch.addcmul(turned * cosine, halves, sine)
            q, k = turned.split((shape.heads, shape.kv_heads), 1)
            v = heads[:, shape.heads + shape.kv_heads :]
            for kind, new in enumerate((k, v)):
                cache[kind, :, :, context:slots].copy_(new.view(batch, rows, shape.kv_heads, -1).transpose(1, 2))
            # The query heads of one KV head become rows of it, so that the cache is read once.
            q = q.reshape(batch, rows, shape.kv_heads, group, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = attention(q, cache[0, :, :, :slots], cache[1, :, :, :slots], mask)
            out = out.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4)
            return layer.output(out.reshape(count, -1))

        def run() -> Tensor:
            x = functional.embedding(ids, self.embedding)
            for layer, cache in zip(self.layers, caches, strict=True):
                x = x + attend(layer, cache, functional.rms_norm(x, (shape.hidden,), layer.norms[0]))
                gate, up = layer.gate_up(functional.rms_norm(x, (shape.hidden,), layer.norms[1])).chunk(2, -1)
                x = x + layer.down(functional.silu(gate) * up)
            return self.head(functional.rms_norm(x, (shape.hidden,))).argmax(-1)

        return run

    def _rotation(self, batch: int, rows: int, context: int) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine of every row, both (rows, 1, head_size)."""
        half = self.shape.head_size // 2
        turns = 500_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = (torch.arange(context, context + rows).float()[:, None] * turns).repeat(batch, 1)[:, None]
        cosine, sine = angles.cos().repeat(1, 1, 2), torch.cat((-angles.sin(), angles.sin()), -1)
        return cosine.to(self.like), sine.to(self.like)

    def mask(self, rows: int, context: int, group: int) -> Tensor:
        """0 where a row sees a slot, minus infinity elsewhere: a chain. Padded in memory, as the kernels ask for."""
        slots = context + rows
        unseen = torch.ones(rows, slots, dtype=torch.bool).triu(context + 1)
        wide = torch.zeros(group * rows, _padded(slots))
        wide[:, :slots].masked_fill_(unseen.repeat(group, 1), float("-inf"))
        return wide.to(self.like)[:, :slots]


def _padded(slots: int) -> int:
    return -(-slots // 16) * 16


def _random(*size: int, like: Tensor) -> Tensor:
    return torch.randn(*size, dtype=like.dtype, device=like.device).mul_(0.02)


def measure(step: Callable[[], Tensor], device: str, replays: int) -> list[float]:
    """Milliseconds of every replay."""
    if device == "cpu":
        step()
        return [_timed_on_cpu(step) for _ in range(replays)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, end in marks:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    found = [start.elapsed_time(end) for start, end in marks]
    graph.reset()
    return found


def _timed_on_cpu(step: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def fastest_attention(decoder: Decoder, batch: int, rows: int, context: int) -> tuple[str, Attention]:
    """Of those that this machine can run, measured alone over several layers' caches."""
    shape = decoder.shape
    group = shape.heads // shape.kv_heads
    q = _random(batch, shape.kv_heads, group * rows, shape.head_size, like=decoder.like)
    slots = _padded(context + rows)
    held = (2, batch, shape.kv_heads, slots, shape.head_size)
    caches = [cache[: torch.Size(held).numel()].view(held)[:, :, :, : context + rows] for cache in decoder.caches[:4]]
    mask = decoder.mask(rows, context, group)
    times: dict[str, float] = {}
    for name, attention in attentions(rows).items():

        def attend(attention: Attention = attention) -> Tensor:
            return torch.stack([attention(q, cache[0], cache[1], mask).flatten()[0] for cache in caches])

        try:
            times[name] = statistics.median(measure(attend, decoder.device, 5))
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(f"  no {name} attention at {batch} x {rows} rows, context {context}: {str(error)[:90]}", flush=True)
    name = min(times, key=lambda name: times[name])
    return name, attentions(rows)[name]


def measured_point(decoder: Decoder, point: tuple[int, int, int], replays: int) -> dict[str, Any]:
    batch, rows, context = point
    name, attention = fastest_attention(decoder, batch, rows, context)
    times = sorted(measure(decoder.step(batch, rows, context, attention), decoder.device, replays))
    return {
        "batch": batch, "rows": rows, "context": context, "milliseconds": round(statistics.median(times), 4),
        "low": round(times[len(times) // 10], 4), "high": round(times[-1 - len(times) // 10], 4), "attention": name,
    }  # fmt: skip


def circumstances(device: str) -> dict[str, Any]:
    commit = os.environ.get("STRIDELM_COMMIT", "")
    if not commit:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        commit = asked.stdout.strip() or "unknown"
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
        "dtype": "bfloat16" if device == "cuda" else "float32", "graphs": device == "cuda", "commit": commit,
    }  # fmt: skip


def run(options: argparse.Namespace) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() and not options.smoke else "cpu"
    begin = time.monotonic()
    report: dict[str, Any] = circumstances(device) | {
        "replays": options.replays, "communication": False, "complete": False, "left_out": [], "groups": [],
    }  # fmt: skip
    with torch.inference_mode():
        for group in groups(options.smoke):
            title = f"{group.shape.name} / {group.shape.tensor_parallel}, {group.layers} layers, rank {group.rank}"
            entry: dict[str, Any] = {"shape": asdict(group.shape), "layers": group.layers, "rank": group.rank}
            entry["points"] = []
            if time.monotonic() - begin > options.seconds:
                report["left_out"].append(title)
                continue
            report["groups"].append(entry)
            decoder = Decoder(group, device)
            for point in group.points():
                if time.monotonic() - begin > options.seconds:
                    report["left_out"].append(f"{title}: from {point}")
                    break
                try:
                    entry["points"].append(measured_point(decoder, point, options.replays))
                except (RuntimeError, torch.OutOfMemoryError, ValueError) as error:
                    report["left_out"].append(f"{title}: {point}: {str(error)[:200]}")
            del decoder  # its weights go before the next one's come
            if device == "cuda":
                torch.cuda.empty_cache()
            print(f"{title}: {len(entry['points'])} points, {time.monotonic() - begin:.0f} s", flush=True)
            report["seconds"] = round(time.monotonic() - begin, 1)
            _write(options.json, report)
    report["complete"] = not report["left_out"]
    _write(options.json, report)
    return report


def _write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=140.0, help="no new point after so long")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, on the CPU, without graphs")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
