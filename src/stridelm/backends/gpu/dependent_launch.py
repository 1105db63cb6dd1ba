"""Kernels that begin before the one in front of them has ended (programmatic dependent launch, Hopper and later).

A step is a few hundred short kernels in a row, each of which would wait for the last program of the one before. With
AHEAD a kernel's programs start as soon as there is room for them, fetch the weights that they will need into the cache,
look up where their rows stand, and only then wait for what the kernel before writes. Nothing is written before
`await_inputs`, and nothing is read that a step's layers write. A kernel is done when all its programs are, and some of
them have waited: so whoever waits for it has waited for all before it, too.

Who waits has a place on the device that others may need. So a kernel of the layers lets the next begin where little is
left to do, not at its own start (H200, 135M, a step with drafts: 0.89 ms for 1.00). A large model's kernels fill the
device with what they read; there beginning ahead costs more than it brings (8B: 5.5 ms a plain step for 4.9), and
nobody does.
"""

# What a kernel is written in only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LINE = tl.constexpr(128)
_MOST = tl.constexpr(32)


@triton.jit
def let_next_begin(AHEAD: tl.constexpr):
    if AHEAD:
        gdc_launch_dependents()


@triton.jit
def await_inputs(AHEAD: tl.constexpr):
    if AHEAD:
        gdc_wait()


@triton.jit
def fetch_rows(weight, first, COUNT: tl.constexpr, N: tl.constexpr, C: tl.constexpr, AHEAD: tl.constexpr):
    """Bring the beginnings of so many rows of an N x C matrix into the L2 cache; COUNT is a power of two."""
    if AHEAD:
        PER_LINE: tl.constexpr = _LINE * 8 // weight.dtype.element_ty.primitive_bitwidth
        row_N = tl.minimum(first + tl.arange(0, COUNT), N - 1)
        at_L = tl.minimum(tl.arange(0, _MOST) * PER_LINE, C - 1)
        address_NL = (weight + row_N.to(tl.int64)[:, None] * C + at_L[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address_NL], dtype=tl.int32, is_pure=False, pack=1
        )
