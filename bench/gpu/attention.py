"""The part `attention` of bench/gpu/run.py: our kernels against what torch has for "a row sees its ancestors".

One layer's attention over a cached text, for rows of a chain with masks off every node. torch's ways read keys and
values that lie in order, side by side; ours reads them from pages. What each needs to know or have beforehand is not
timed: FlexAttention's block mask; the dense mask, and a key head for every query head. FlexAttention has a kernel for
few rows, which it takes by itself, and one for many, which can be asked for.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench.gpu.steps import gpu_forward, graphed_often, step_rows
from bench.gpu.subject import Subject, as_torch_comes
from bench.gpu.timing import at_most, interleaved, ratios, summary
from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.layout import Shape
from stridelm.types import Rows

Figures = dict[str, Any]
OURS, DENSE = "ours", "scaled_dot_product_attention"
FLEX = {
    "FlexAttention, compiled": {},
    "FlexAttention, its kernel for many rows": {"FORCE_USE_FLEX_ATTENTION": True},
}
_COMPILING = 120


@torch.inference_mode()
def attention(subject: Subject) -> Iterator[Figures]:
    sizes, forward = subject.sizes, gpu_forward(subject)
    found: Figures = {}
    for context in sizes.attention_contexts:
        for count in sizes.attention_rows:
            name = f"{count} rows, context {context}"
            if not subject.has_time(name):
                continue
            rows = step_rows(forward, count, context, masks=count > 1)
            with as_torch_comes():
                ways = {OURS: _ours(forward, rows, context)} | _theirs(subject, forward, rows, context)
                times = interleaved(
                    {way: graphed_often(call, forward, forward.zeros(1), lambda: None) for way, call in ways.items()},
                    forward.weights.device, replays=sizes.replays, times=sizes.times,
                )  # fmt: skip
            found[name] = {way: summary(each) for way, each in times.items()}
            found[name]["ratios"] = {way: ratios(each, times[OURS]) for way, each in times.items() if way != OURS}
            subject.say(f"{name}: " + ", ".join(f"{way} {1000 * found[name][way]['median']:.1f} us" for way in times))
            yield {"milliseconds": "of one layer's attention", "steps": found}


def _ours(forward: GpuForward, rows: Rows, context: int) -> Callable[[], object]:
    table = forward.cache.open(context + len(rows.ids_Q))
    table.length = context  # nothing was read: for timing, any keys will do
    forward(rows, [table])
    shape, weights, layers = Shape.of(rows, forward.run_layers.run), forward.weights, forward.run_layers
    layout = forward._buffers[shape].device
    query_MX = torch.randn(shape.rows, weights.query_heads * weights.head_size, device=weights.device).to(weights.dtype)
    output_MX = torch.empty_like(query_MX)

    def attend() -> None:
        layers.attend(0, layout, query_MX, output_MX, spans=shape.spans, has_trees=shape.has_trees)

    return attend


def _theirs(subject: Subject, forward: GpuForward, rows: Rows, context: int) -> dict[str, Callable[[], object]]:
    weights, count = forward.weights, len(rows.ids_Q)
    kind: dict[str, Any] = {"dtype": weights.dtype, "device": weights.device}
    query = torch.randn(1, weights.query_heads, count, weights.head_size, **kind)
    key, value = (torch.randn(1, weights.key_heads, context + count, weights.head_size, **kind) for _ in range(2))
    sees_QT = torch.cat(
        [torch.ones(count, context, dtype=torch.bool), torch.from_numpy(ancestors(rows.parents_Q))], dim=1
    ).to(weights.device)

    def sees(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return sees_QT[row, at]

    block_mask = create_block_mask(sees, None, None, count, context + count, device=str(weights.device))
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    share = weights.query_heads // weights.key_heads
    whole_key, whole_value = (each.repeat_interleave(share, dim=1) for each in (key, value))
    ways: dict[str, Callable[[], object]] = {
        DENSE: lambda: functional.scaled_dot_product_attention(
            query, whole_key, whole_value, attn_mask=sees_QT, scale=weights.scaling
        )
    }
    for name, options in FLEX.items():

        def flex(options: dict[str, bool] = options) -> object:
            return compiled(
                query, key, value, block_mask=block_mask, scale=weights.scaling, enable_gqa=True, kernel_options=options
            )

        try:
            with at_most(_COMPILING, "compiling FlexAttention"):
                flex()
            ways[name] = flex
        except Exception as error:  # not every shape compiles everywhere: the others are measured
            subject.say(f"{name}, over {count} rows: {type(error).__name__}: {error}"[:300])
    return ways


def ancestors(parents_Q: np.ndarray) -> np.ndarray:
    """Which row sees which row of its step: those on its path, and itself."""
    sees_QQ = np.eye(len(parents_Q), dtype=bool)
    for row, parent in enumerate(parents_Q):
        if parent >= 0:
            sees_QQ[row] |= sees_QQ[parent]
    return sees_QQ
