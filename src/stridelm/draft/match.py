"""Where a text's last tokens occur elsewhere."""

from collections.abc import Sequence as Items

import numpy as np

SHORTEST_MATCH = 2
"""A single token occurs almost everywhere."""


def longest_matches(tokens: np.ndarray, ending: Items[int] | np.ndarray) -> tuple[np.ndarray, int]:
    """The indices of the last tokens of the longest matches of an ending, rising, and the length of these matches."""
    ends = matched = np.flatnonzero(tokens == ending[-1])
    length = 0
    while len(ends):
        length += 1
        matched = ends
        if length == len(ending):
            break
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == ending[-1 - length]]
    return matched, length
