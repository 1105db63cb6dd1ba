"""Kernels that start before the previous kernel has ended (programmatic dependent launch, Hopper and later).

A step is a few hundred short kernels in a row. Without this, each would wait for the last program of the previous one.
With AHEAD a kernel's programs start as soon as there is room for them, prefetch the weights that they will need into
the L2 cache, look up the positions of their rows, and only then wait for the previous kernel's results. Before
`await_inputs` nothing is written, and nothing is read that the layers of the same step write. A kernel is done when all
its programs are done, and some of them have waited for the previous kernel: so waiting for one kernel means waiting for
all before it.

A waiting program occupies a slot of the device that others may need. So a kernel of the layers lets the next one start
when little work is left, not at its own start (H200, 135M, a step with drafts: 0.89 ms instead of 1.00). A large
model's kernels fill the device with loads; there starting early costs more than it gains (8B: 5.5 ms per plain step
instead of 4.9), and AHEAD is off.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LINE_BYTES = tl.constexpr(128)
_MAX_LINES = tl.constexpr(32)


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
    """Prefetch the beginnings of COUNT rows of an N x C matrix into the L2 cache; COUNT is a power of two."""
    if AHEAD:
        PER_LINE: tl.constexpr = _LINE_BYTES * 8 // weight.dtype.element_ty.primitive_bitwidth
        row_N = tl.minimum(first + tl.arange(0, COUNT), N - 1)
        at_L = tl.minimum(tl.arange(0, _MAX_LINES) * PER_LINE, C - 1)
        address_NL = (weight + row_N.to(tl.int64)[:, None] * C + at_L[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address_NL], dtype=tl.int32, is_pure=False, pack=1
        )
