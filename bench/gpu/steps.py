"""Parts of bench/gpu/run.py that time single steps: `steps` and `compile`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.utils import counters
from transformers import StaticCache

from bench.gpu.subject import Subject, as_torch_comes
from bench.gpu.timing import WARM_UP, Timed, at_most, interleaved, ratios, summary
from stridelm.backends.common.cuda_graph import Graphed
from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.layers import Scores
from stridelm.backends.gpu.layout import Shape
from stridelm.backends.gpu.stepper import GpuStepper
from stridelm.layout import lay_out, make_block
from stridelm.params import InputError
from stridelm.stepper import Continuation
from stridelm.types import ROOT, DraftTree, Rows

Figures = dict[str, Any]
_ROOM = 1 << 20
_IN_A_GRAPH = 8
"""Kernels of a few microseconds are timed so often in one graph: by themselves, launching them would take longer."""
_COMPILING = 240
"""Seconds that torch.compile may take."""
_SPARE = 64
"""Tokens that the static cache has room for behind the context."""


def gpu_forward(subject: Subject) -> GpuForward:
    """With a cache of its own, as large as the model's: so its kernels are the same."""
    forward = subject.model.engine.forward
    if not isinstance(forward, GpuForward):
        raise InputError(f"{subject.name} does not run on the GPU backend here: steps cannot be timed")
    return forward.with_cache(subject.model.settings.cache_tokens)


def step_rows(forward: GpuForward, rows: int, context: int, *, masks: bool) -> Rows:
    """A chain behind a text, or a chain with masks off every node of it."""
    chain = mask_chain(rows, len(forward.weights.mask_embedding_KC)) if masks else 0
    nodes = rows // (1 + chain)
    drafts = DraftTree.chain([1] * (nodes - 1), "bench")
    anchors = range(ROOT, nodes - 1) if chain else ()
    return lay_out([make_block(context, [1], drafts, anchors=anchors, masks=chain)])


def forward_call(forward: GpuForward, rows: int, context: int, *, masks: bool) -> Timed:
    """One forward from its captured graph."""
    laid_out = step_rows(forward, rows, context, masks=masks)
    table = forward.cache.open(context + rows)
    table.length = context  # nothing was read: for timing, any keys will do
    forward(laid_out, [table])
    shape = Shape.of(laid_out, forward.run_layers.run)

    @torch.inference_mode()
    def call() -> object:
        return forward._graph(shape)(shape)

    return Timed(call)


def mask_chain(rows: int, most: int) -> int:
    """The longest chain of masks that can hang off every node in so many rows."""
    return max((masks for masks in range(1, most + 1) if rows % (1 + masks) == 0), default=0)


def stepper_call(forward: GpuForward, drafts: int, context: int, replays: int) -> tuple[Timed, GpuStepper]:
    """A step that the device runs by itself, with the host reading what came of the one before, as the engine does."""
    stepper = forward.stepper(drafts, 1, frozenset())
    steps = max(replays, WARM_UP) + 4
    table = forward.cache.open(context + steps * (drafts + 1) + stepper.rows)

    def reset() -> None:
        while stepper.in_flight:
            stepper.collect()
        stepper.begin(0, Continuation(cached=context, pending=1, room=_ROOM, blocks=table.blocks))

    def call() -> None:
        if not stepper.in_flight:
            stepper.launch()
        stepper.launch()
        stepper.collect()

    return Timed(call, reset), stepper


@torch.inference_mode()
def parts_of(stepper: GpuStepper, forward: GpuForward, reset: Callable[[], object]) -> dict[str, Timed]:
    """Where a step's time goes: its parts, each captured apart."""
    layers, layout, growth = stepper.layers, stepper.layout, stepper.draft_grower

    def run_layers() -> torch.Tensor:
        return stepper.read_rows().residual_MC

    def score() -> Scores:
        return layers.score(layers.normed(residual_MC, layout.wanted_W))

    reset()
    residual_MC = run_layers()
    scores = score()
    parts: dict[str, Callable[[], object]] = {
        "layers": run_layers,
        "head": score,
        "settle": lambda: stepper._accept_drafts(scores),
    }
    if growth is not None:
        parts["drafts"] = lambda: growth(scores, layout, stepper.drawing, stepper.ends_at_B)
    timed = {name: graphed_often(part, forward, stepper.results, reset) for name, part in parts.items()}
    return timed | {"whole": Timed(_in_inference(Graphed(stepper._step, forward.network, stepper.device)), reset)}


def graphed_often(
    part: Callable[[], object], forward: GpuForward, result: torch.Tensor, reset: Callable[[], object]
) -> Timed:
    """Kernels of a few microseconds, several times in one graph."""

    def several() -> torch.Tensor:
        for _ in range(_IN_A_GRAPH):
            part()
        return result  # a graph gives a tensor; nobody reads it

    return Timed(_in_inference(Graphed(several, forward.network, forward.weights.device)), reset, _IN_A_GRAPH)


def _in_inference(graphed: Graphed) -> Callable[[], object]:
    @torch.inference_mode()
    def call() -> object:
        return graphed(())

    return call


def steps(subject: Subject) -> Iterator[Figures]:
    sizes, forward = subject.sizes, gpu_forward(subject)
    yield from step_figures(subject, forward, sizes.rows, sizes.drafts)


def step_figures(
    subject: Subject, forward: GpuForward, rows: tuple[int, ...], drafts: tuple[int, ...]
) -> Iterator[Figures]:
    """Forwards by rows, whole steps by drafts, then the parts of the shortest step and of the longest."""
    sizes, device = subject.sizes, forward.weights.device
    often = {"replays": sizes.replays, "times": sizes.times}
    most = len(forward.weights.mask_embedding_KC)
    figures: Figures = {"context": sizes.context, "milliseconds": "medians; four fifths of the times in between"}
    calls: dict[str, Timed] = {}
    for count in rows:
        subject.say(f"preparing {count} rows")
        calls[f"{count} rows"] = forward_call(forward, count, sizes.context, masks=False)
        if mask_chain(count, most):
            calls[f"{count} rows, masks"] = forward_call(forward, count, sizes.context, masks=True)
    steppers: dict[int, GpuStepper] = {}
    for count in drafts:
        subject.say(f"preparing steps of {count} drafts")
        calls[f"{count} drafts"], steppers[count] = stepper_call(forward, count, sizes.context, sizes.replays)
    times = interleaved(calls, device, **often)
    for name, found in times.items():
        subject.say(f"{name}: {summary(found)['median']} ms")
    figures["forward"] = {str(count): summary(times[f"{count} rows"]) for count in rows}
    figures["forward_with_masks"] = {
        str(count): summary(times[name]) for count in rows if (name := f"{count} rows, masks") in times
    }
    figures["steps"] = {
        str(count): {"rows": stepper.rows} | summary(times[f"{count} drafts"]) for count, stepper in steppers.items()
    }
    figures["over_one_row"] = {
        name: ratios(found, times["1 rows"]) for name, found in times.items() if name.startswith("64 rows")
    }
    yield figures
    figures["parts"] = {}
    for count in (drafts[0], drafts[-1]):
        if subject.has_time(f"parts of a step of {count} drafts"):
            reset = calls[f"{count} drafts"].reset
            assert reset is not None
            found = interleaved(parts_of(steppers[count], forward, reset), device, **often)
            figures["parts"][str(count)] = {name: summary(each) for name, each in found.items()}
            subject.say(f"{count} drafts: " + ", ".join(f"{n} {summary(e)['median']}" for n, e in found.items()))
            reset()
            yield figures


# transformers' own network, compiled


def own_step(network: Any, context: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], None]]:
    """One token through transformers' network over its static cache, and what brings the cache back to the context.
    The context is read as it comes: only then does the cache mark its tensors as ones that stay where they are."""
    cache: Any = StaticCache(config=network.config, max_cache_len=context + _SPARE)
    prompt = torch.ones(1, context, dtype=torch.int64, device=network.device)
    network(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step(ids_11: torch.Tensor) -> torch.Tensor:
        return network(input_ids=ids_11, past_key_values=cache, use_cache=True).logits[:, -1].argmax(dim=-1)

    def reset() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)

    return step, reset


@torch.no_grad()
def compiled(subject: Subject) -> Iterator[Figures]:
    """Our plain step against the best of torch.compile, in one run."""
    sizes, device = subject.sizes, subject.device
    forward = gpu_forward(subject)
    assert sizes.replays + WARM_UP < _SPARE
    plain, _ = stepper_call(forward, 0, sizes.context, sizes.replays)
    ours = {"our step": plain, "our forward": forward_call(forward, 1, sizes.context, masks=False)}
    with as_torch_comes():
        step, reset = own_step(subject.network, sizes.context)
        ids_11 = torch.ones(1, 1, dtype=torch.int64, device=device)
        eager = Timed(lambda: step(ids_11), reset)
        subject.say("compiling")
        counters.clear()
        quick = torch.compile(step, mode="reduce-overhead")

        def call() -> object:
            torch.compiler.cudagraph_mark_step_begin()
            return quick(ids_11)

        theirs = Timed(call, reset)
        with at_most(_COMPILING, "torch.compile"):
            reset()
            for _ in range(WARM_UP):  # compiles, records and replays
                call()
        compiling = round(subject.elapsed, 1)
        subject.say("compiled")
        slow = interleaved({"eager": eager}, device, replays=2, times=5)["eager"]
        times = interleaved(ours | {"compiled": theirs}, device, replays=sizes.replays, times=sizes.times)
    skips = int(counters["inductor"]["cudagraph_skips"])
    figures: Figures = {"context": sizes.context, "seconds_until_compiled": compiling, "eager": summary(slow)}
    figures |= {name.replace(" ", "_"): summary(found) for name, found in times.items()}
    figures["graphs_skipped"] = skips
    # Launched one by one, the kernels take about as long as without torch.compile.
    figures["is_replayed"] = skips == 0 and figures["compiled"]["median"] < figures["eager"]["median"] / 2
    figures["ratio"] = ratios(times["our step"], times["compiled"])
    figures["forward_ratio"] = ratios(times["our forward"], times["compiled"])
    subject.say(str({name: figures[name] for name in ("our_step", "compiled", "eager", "ratio", "is_replayed")}))
    yield figures
