"""Triton functions shared by the kernels of `product_kernels`: a tile of rows times a tile of outputs.

Shape letters: M rows of a tile, K inputs at once, N outputs of a tile, R rank, T tiles of the residual.
"""

# Triton's language only looks like Python.
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl


@triton.jit
def rows_of_tile(tile, real, M, BM: tl.constexpr, MERGED: tl.constexpr):
    """The rows of a tile, where they end, and which weights they read (0: the base's, 1: those for masks)."""
    kind = tile * 0
    first = tile * BM
    end = M
    if MERGED:
        real_tiles = tl.cdiv(real, BM)
        kind = (tile >= real_tiles).to(tl.int32)
        first = tl.where(kind > 0, real + (tile - real_tiles) * BM, first)
        end = tl.where(kind > 0, M, real)
    return first + tl.arange(0, BM), end, kind


@triton.jit
def load_rows(x, row_M, k, end, C: tl.constexpr, BK: tl.constexpr):
    at = k + tl.arange(0, BK)
    return tl.load(x + row_M[:, None] * C + at[None, :], mask=(row_M[:, None] < end) & (at[None, :] < C), other=0.0)


@triton.jit
def load_weights(weight, out_N, first, size: tl.constexpr, k, C: tl.constexpr, BK: tl.constexpr):
    """Rows first + out_N of an N x C matrix, for out_N below `size`, transposed: BK x BN."""
    at = k + tl.arange(0, BK)
    held = (out_N[None, :] < size) & (at[:, None] < C)
    return tl.load(weight + (first + out_N[None, :]).to(tl.int64) * C + at[:, None], mask=held, other=0.0)


@triton.jit
def norm_scale(squares, row_M, end, eps, C: tl.constexpr, TILES: tl.constexpr, BT: tl.constexpr):
    """Each row's scale in a norm, from the sums of squares of the residual's tiles."""
    tile = tl.arange(0, BT)
    held = (row_M[:, None] < end) & (tile[None, :] < TILES)
    part_MT = tl.load(squares + row_M[:, None] * TILES + tile[None, :], mask=held, other=0.0)
    return 1 / tl.sqrt(tl.sum(part_MT, axis=1) / C + eps)


@triton.jit
def apply_down(
    x, row_M, end, down, piece, masks, scale_M, low, done, tile,
    C: tl.constexpr, ALL: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A piece of the first low-rank factors (ALL ranks together) applied to a tile of rows, times the rows' gates; then
    count it as done."""
    low_MR = tl.zeros((row_M.shape[0], BR), tl.float32)
    rank = tl.arange(0, BR)
    for k in range(0, C, BK):
        x_MK = load_rows(x, row_M, k, end, C, BK)
        low_MR = tl.dot(x_MK, load_weights(down, rank, piece * BR, BR, k, C, BK), low_MR, input_precision="ieee")
    gate_M = (tl.load(masks + row_M, mask=row_M < end, other=0) > 0).to(tl.float32)
    low_MR = low_MR * (scale_M * gate_M)[:, None]
    to_MR = low + row_M[:, None] * ALL + piece * BR + rank[None, :]
    tl.store(to_MR, low_MR.to(low.dtype.element_ty), mask=(row_M < end)[:, None])
    tl.debug_barrier()
    tl.atomic_add(done + tile, 1)


@triton.jit
def await_low(done, tile, PIECES: tl.constexpr):
    """Wait until all pieces of a tile of rows are done."""
    while tl.atomic_add(done + tile, 0) < PIECES:
        pass


@triton.jit
def load_up(up, out_N, first, size: tl.constexpr, R: tl.constexpr):
    """The second factor of a low-rank part, for a tile of outputs."""
    rank = tl.arange(0, R)
    return tl.load(up + (first + out_N[None, :]) * R + rank[:, None], mask=out_N[None, :] < size, other=0.0)


@triton.jit
def apply_up(low, row_M, end, up_RN, part, R: tl.constexpr, PARTS: tl.constexpr):
    """What a low-rank part adds to a tile of outputs."""
    of_MR = low + row_M[:, None] * (PARTS * R) + part * R + tl.arange(0, R)[None, :]
    return tl.dot(tl.load(of_MR, mask=(row_M < end)[:, None], other=0.0), up_RN, input_precision="ieee")
