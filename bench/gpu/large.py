"""The part `large` of gpu/run.py: a model shaped as Llama-3.1-8B, with random weights that are made on the device.

Its steps are measured. What they would give in tokens per second is a projection: with acceptance as it was measured on
the built-in model.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from bench.gpu.steps import step_figures
from bench.gpu.subject import Subject
from bench.gpu.timing import rounded
from bench.measured import read
from bench.scale.step_cost import Shape
from bench.scale.steps import Acceptance
from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.weights import SPARE_POSITIONS, Layer, Product, SequentialWeights, Weights

Figures = dict[str, Any]
_GROUPS = {"maths": "held-out GSM8K train questions", "general": "own prompts of twelve kinds"}
_MASKS = 8
_POSITIONS = 4096
_CACHE_TOKENS = 16384
"""Everything that is timed has a text of its own."""


class RandomWeights:
    """Draws tensors of one kind, on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.kind: dict[str, Any] = {"dtype": dtype, "device": device}

    def __call__(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, **self.kind).mul_(0.02)

    def ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, **self.kind)

    def product(self, outputs: int, inputs: int, rank: int, joined: int = 1) -> Product:
        """`joined`: linear layers that it is made of, each with a low-rank part."""
        return Product(self(1, outputs, inputs), None, self(rank * joined, inputs), self(outputs, rank))


@torch.inference_mode()
def random_weights(shape: Shape, rank: int, state: int, dtype: torch.dtype, device: torch.device) -> Weights:
    """An adapter of that rank and a sequential head of that state included."""
    draw = RandomWeights(dtype, device)
    width, wide = shape.hidden, shape.heads * shape.head_size
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_size
    half = shape.head_size // 2
    turns_D = 500_000.0 ** (-torch.arange(half, device=device).float() / half)
    angles_PD = torch.arange(_POSITIONS + SPARE_POSITIONS, device=device).float()[:, None] * turns_D
    return Weights(
        layers=tuple(
            Layer(
                heads=draw.product(heads, width, rank, joined=3),
                output=draw.product(width, wide, rank),
                units=draw.product(2 * shape.inner, width, rank, joined=2),
                down=draw.product(width, shape.inner, rank),
                norm_before_attention_C=draw.ones(width),
                norm_before_units_C=draw.ones(width),
                head_norms_2D=None,
                window=0,
            )
            for _ in range(shape.layers)
        ),
        embedding_VC=draw(shape.vocabulary, width),
        mask_embedding_KC=draw(_MASKS, width),
        norm_C=draw.ones(width),
        head_VC=draw(shape.vocabulary, width),
        head_bias_V=None,
        cosine_PD=angles_PD.cos().contiguous(),
        sine_PD=angles_PD.sin().contiguous(),
        query_heads=shape.heads,
        key_heads=shape.kv_heads,
        head_size=shape.head_size,
        inner=shape.inner,
        rank=rank,
        epsilon=1e-5,
        scaling=shape.head_size**-0.5,
        sequential=SequentialWeights(
            state, draw(2 * state, width), draw(2 * state, width), draw(2 * state), draw(2 * state, state),
            draw(state, width),
        ),
    )  # fmt: skip


def large(subject: Subject) -> Iterator[Figures]:
    sizes, shape = subject.sizes, subject.sizes.large
    subject.say(f"making {shape.name}, {shape.layers} layers")
    weights = random_weights(shape, sizes.large_rank, sizes.large_state, subject.dtype, subject.device)
    # There is no network to it: the forward only looks whether one has experts.
    forward = GpuForward(cast(Any, nn.Module()), weights, _CACHE_TOKENS)
    about = {"shape": shape.name, "layers": shape.layers, "adapter_rank": sizes.large_rank, "weights": "random"}
    for figures in step_figures(subject, forward, sizes.large_rows, sizes.large_drafts):
        yield about | figures | {"projection": projection(figures["steps"], acceptances(subject.results))}


def acceptances(results: Figures) -> dict[str, tuple[str, Acceptance]]:
    """By group, where it was measured and what: by `decode` in the same file, or else by training/acceptance.py."""
    measured = results.get("decode", {}).get("groups", {})
    kept = read("acceptance.json")
    found: dict[str, tuple[str, Acceptance]] = {}
    for group, name in _GROUPS.items():
        rates = measured.get(group, {}).get("self", {}).get("acceptance_by_depth")
        if rates:
            found[group] = "decode", _unscaled(group, rates)
        else:
            found[group] = "bench/results/acceptance.json", _unscaled(group, kept[name]["acceptance_by_depth"])
    return found


def _unscaled(name: str, rates: list[float]) -> Acceptance:
    """What the rates say, as they are."""
    tokens = path = 1.0
    for rate in rates:
        path *= rate
        tokens += path
    return Acceptance(name, tuple(rates), tokens)


def projection(steps: Figures, found: dict[str, tuple[str, Acceptance]]) -> Figures:
    """Tokens per second by measured steps, at the number of drafts that gives most, and one token at a time."""
    plain = 1000 / steps["0"]["median"]
    groups: Figures = {}
    for group, (source, acceptance) in found.items():
        speeds = {
            drafts: 1000 * acceptance.tokens(int(drafts)) / step["median"]
            for drafts, step in steps.items()
            if int(drafts) <= len(acceptance.by_depth)
        }
        best = max(speeds, key=lambda drafts: speeds[drafts])
        groups[group] = {
            "acceptance_from": source,
            "drafts": int(best),
            "tokens_per_forward": rounded(acceptance.tokens(int(best))),
            "tokens_per_second": rounded(speeds[best]),
            "over_plain": rounded(speeds[best] / plain),
        }
    return {
        "is_a_projection": True,
        "of": "tokens/s = tokens per forward, from the built-in model's measured acceptance / measured step",
        "plain_tokens_per_second": rounded(plain),
        "groups": groups,
    }
