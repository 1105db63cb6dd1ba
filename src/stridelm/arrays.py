"""The few operations on logits that decoding needs, for numpy arrays and torch tensors alike.

The native backend returns numpy arrays and must run without torch, which takes two seconds to import; torch's tensors
stay on their device, perhaps a GPU. Operations that are written alike for both (`x[rows]`, `x.argmax(-1)`, `x.max()`,
`a - b`, `x.tolist()`) are used directly; the others are here. None of them changes its arguments.

Shape letters: W rows, V vocabulary, N some of it, X rows of N.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from stridelm.types import Array

_LOOKED_AT = (1e-3, 1e-5, 0.0)
"""Thresholds that are tried in turn: only tokens of at least this probability are sorted, as long as they sum up to
enough. Sorting a whole vocabulary takes longer than a forward of a small model."""
_ROUNDING = 1e-6
_NEAR = 10.0
"""The likeliest few dozen tokens are usually within this distance of the best logit."""
_FEW = 16


def float32(x: Array) -> Array:
    return x.astype(np.float32, copy=False) if isinstance(x, np.ndarray) else x.float()


def float64(x: Array) -> Array:
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.double()


def copy(x: Array) -> Array:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def exp(x: Array) -> Array:
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def negative_log(x: Array) -> Array:
    if not isinstance(x, np.ndarray):
        return -x.log()
    logarithm = np.log(x)
    return np.negative(logarithm, out=logarithm)


def integers(values: Items[int], like: Array) -> Array:
    """These numbers as int64, in an array of the same kind and on the same device as `like`."""
    if isinstance(like, np.ndarray):
        return np.asarray(values, dtype=np.int64)
    import torch

    return torch.tensor(values, dtype=torch.int64, device=like.device)


def count_up(start: int, stop: int, like: Array) -> Array:
    """start, ..., stop - 1."""
    if isinstance(like, np.ndarray):
        return np.arange(start, stop)
    import torch

    return torch.arange(start, stop, device=like.device)


def placed(x: np.ndarray, like: Array) -> Array:
    """A numpy array, converted to the kind and device of `like`."""
    if isinstance(like, np.ndarray):
        return x
    import torch

    return torch.from_numpy(x).to(like.device)


def stack(items: Items[Array]) -> Array:
    """In a new first dimension."""
    if isinstance(items[0], np.ndarray):
        return np.stack(items)
    import torch

    return torch.stack(list(items))


def join(items: Items[Array]) -> Array:
    """Along the first dimension."""
    if isinstance(items[0], np.ndarray):
        return np.concatenate(items)
    import torch

    return torch.cat(list(items))


def repeat(x_N: Array, count: int) -> Array:
    """`count` equal rows, which share memory: not to be written to."""
    if isinstance(x_N, np.ndarray):
        return np.broadcast_to(x_N, (count, len(x_N)))
    return x_N.expand(count, -1)


def pick_rows(x_WV: Array, rows: list[int]) -> Array:
    """Some rows, in rising order. Not copied if they are consecutive."""
    if isinstance(x_WV, np.ndarray) and rows[-1] - rows[0] == len(rows) - 1:
        return x_WV[rows[0] : rows[-1] + 1]
    return x_WV[rows]


def choose(condition: Array, then: Array, otherwise: Array) -> Array:
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, otherwise)
    import torch

    return torch.where(condition, then, otherwise)


def fill(x: Array, where: Array, value: float) -> Array:
    """`x` with a value wherever `where` is true."""
    if isinstance(x, np.ndarray):
        return np.where(where, x.dtype.type(value), x)
    return x.masked_fill(where, value)


def put(x_V: Array, places_N: Array, values_N: Array) -> Array:
    """`x_V` with other values at some indices."""
    if not isinstance(x_V, np.ndarray):
        return x_V.scatter(0, places_N, values_N)
    changed_V = x_V.copy()
    changed_V[places_N] = values_N
    return changed_V


def spread(values_N: Array, places_N: Array, size: int, elsewhere: float) -> Array:
    """An array of `size` values: these at their indices, `elsewhere` at all others."""
    if not isinstance(values_N, np.ndarray):
        return values_N.new_full((size,), elsewhere).scatter(0, places_N, values_N)
    spread_V = np.full(size, elsewhere, dtype=values_N.dtype)
    spread_V[places_N] = values_N
    return spread_V


def occurrences(values: Items[int], like_V: Array) -> Array:
    """How often each of 0 .. V - 1 occurs, as an array of the same kind as `like_V`."""
    if isinstance(like_V, np.ndarray):
        return np.bincount(np.asarray(values, dtype=np.int64), minlength=len(like_V)).astype(like_V.dtype)
    import torch

    return torch.bincount(torch.tensor(values, dtype=torch.int64), minlength=len(like_V)).to(like_V)


def softmax(x: Array) -> Array:
    """Over the last dimension."""
    if not isinstance(x, np.ndarray):
        return x.softmax(dim=-1)
    with np.errstate(invalid="ignore", over="ignore"):  # torch does not warn about rows of -inf either
        shares = x - x.max(axis=-1, keepdims=True)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def log_softmax(x: Array) -> Array:
    """Over the last dimension."""
    if not isinstance(x, np.ndarray):
        return x.log_softmax(dim=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = x - x.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def log_softmax_at(x_WV: Array, places: Items[int]) -> Array:
    """One entry of each row's `log_softmax`."""
    if not isinstance(x_WV, np.ndarray):
        places_W1 = integers(places, x_WV).unsqueeze(1)
        return x_WV.log_softmax(dim=-1).gather(1, places_W1).squeeze(1)
    found_W = np.empty(len(x_WV), dtype=x_WV.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, (x_V, place) in enumerate(zip(x_WV, places, strict=True)):
            shifted_V = x_V - x_V.max()
            at = shifted_V[place]
            np.exp(shifted_V, out=shifted_V)
            found_W[row] = at - np.log(shifted_V.sum())
    return found_W


def top(x_V: Array, count: int) -> tuple[Array, Array]:
    """The indices of the `count` largest values, in any order, and these values."""
    if not isinstance(x_V, np.ndarray):
        found = x_V.topk(count, sorted=False)
        return found.indices, found.values
    # Nearly all logits are far below the best: searching only the others takes a quarter of the time.
    near_N = np.flatnonzero(x_V > x_V.max() - _NEAR)
    if len(near_N) < count:
        near_N = np.arange(len(x_V))
    near = x_V[near_N]
    places_N = near_N[np.argpartition(near, len(near) - count)[len(near) - count :]]
    return places_N, x_V[places_N]


def least_of_top(x_V: Array, count: int) -> Array:
    """The smallest of the `count` largest values."""
    if not isinstance(x_V, np.ndarray):
        return x_V.topk(count).values[-1]
    return np.partition(x_V, len(x_V) - count)[len(x_V) - count]


def best_shares(x_XN: Array, count: int) -> list[list[tuple[int, float]]]:
    """For every row's softmax, the indices of the `count` largest values, best first, and these values."""
    if not isinstance(x_XN, np.ndarray) or x_XN.shape[1] > _FEW:
        places_XB, shares_XB = best(softmax(x_XN), count)
        return [list(zip(*each, strict=True)) for each in zip(places_XB.tolist(), shares_XB.tolist(), strict=True)]
    # For a few numbers, lists are faster than numpy.
    return [_best_share(row, count) for row in x_XN.tolist()]


def _best_share(row: list[float], count: int) -> list[tuple[int, float]]:
    order = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:count]
    most = row[order[0]]
    weights = [math.exp(each - most) if each > -math.inf else 0.0 for each in row]
    total = sum(weights)
    return [(place, weights[place] / total) for place in order]


def best(x_XN: Array, count: int) -> tuple[Array, Array]:
    """For every row, the indices of the `count` largest values, best first, and these values."""
    if not isinstance(x_XN, np.ndarray):
        found = x_XN.topk(count)
        return found.indices, found.values
    places = np.argpartition(x_XN, x_XN.shape[1] - count, axis=1)[:, x_XN.shape[1] - count :]
    order = np.argsort(-np.take_along_axis(x_XN, places, axis=1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    return places, np.take_along_axis(x_XN, places, axis=1)


def beyond(share_V: Array, most: float) -> Array:
    """Which entries are left out if the largest are taken first (of equal ones, the first) until they sum to `most`."""
    if not isinstance(share_V, np.ndarray):
        sorted_V, order_V = share_V.sort(descending=True, stable=True)
        left_out_V = sorted_V.cumsum(dim=-1) - sorted_V >= most
        return left_out_V.new_zeros(len(share_V)).scatter(0, order_V, left_out_V)
    order_N, left_out_N, least = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool), 0.0
    for least in _LOOKED_AT:
        places_N = np.flatnonzero(share_V >= least)
        order_N = places_N[np.argsort(-share_V[places_N], kind="stable")]
        sorted_N = share_V[order_N]
        sums_N = np.cumsum(sorted_N, dtype=np.float64)  # as torch sums
        left_out_N = sums_N.astype(share_V.dtype) - sorted_N >= most
        if len(sums_N) and sums_N[-1] > most + _ROUNDING:  # then all that is smaller is left out
            break
    left_out_V = np.full(len(share_V), least > 0)
    left_out_V[order_N] = left_out_N
    return left_out_V


def add_noise(x_V: Array, noise_of: Callable[[Array], Array]) -> Array:
    """`x_V` in float64, plus noise; `noise_of` computes the noise for some indices."""
    if not isinstance(x_V, np.ndarray):
        return x_V.double() + noise_of(count_up(0, len(x_V), x_V))
    is_left_V = x_V != -np.inf
    if is_left_V.all():
        return x_V + noise_of(np.arange(len(x_V)))
    # Tokens that a filter has dropped need no noise.
    places_N = np.flatnonzero(is_left_V)
    noisy_V = np.full(len(x_V), -np.inf)
    noisy_V[places_N] = x_V[places_N] + noise_of(places_N)
    return noisy_V


def mix(words: Array, shifts: tuple[int, ...], multipliers: tuple[int, ...]) -> Array:
    """int64 words, repeatedly xor-ed with themselves shifted right (as unsigned) and multiplied; products wrap."""
    if not isinstance(words, np.ndarray):
        for shift, multiplier in zip(shifts, multipliers, strict=True):
            words = (words ^ (words >> shift & 2 ** (64 - shift) - 1)) * signed(multiplier)
        return words
    mixed = words.view(np.uint64).copy()
    shifted = np.empty_like(mixed)
    for shift, multiplier in zip(shifts, multipliers, strict=True):
        np.right_shift(mixed, np.uint64(shift), out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, np.uint64(multiplier), out=mixed)
    return mixed.view(np.int64)


def uniform(words: Array) -> Array:
    """The upper 53 bits of int64 words as float64 between 0 and 1, neither included."""
    if not isinstance(words, np.ndarray):
        return ((words >> 11 & 2**53 - 1).double() + 0.5) * 2.0**-53
    shares = (words.view(np.uint64) >> np.uint64(11)).astype(np.float64)
    shares += 0.5
    shares *= 2.0**-53
    return shares


def signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - 2**64 if word >= 2**63 else word
