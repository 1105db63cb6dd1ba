"""Which texts and anchors a step trains on: a pure function of the seed and the step, so that a resumed run continues
with the same batches.

Texts are grouped into buckets by length (the full length, a half, a quarter, ...). A batch takes texts of one bucket
and always has the same number of tokens and of chains, so the model's layers see a single shape.
"""

from dataclasses import dataclass

import numpy as np

from stridelm.params import InputError
from stridelm.train.rollouts import Text
from stridelm.train.settings import TrainSettings

_MIN_WIDTH = 128
_MIN_ANSWER, _MIN_CHAINED_ANSWER = 1, 3
"""Minimum tokens of an answer. With chains: an anchor, a mask and the token that the mask has to predict."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B texts of T tokens, padded at the end, each with A anchors in rising order."""

    ids_BT: np.ndarray
    lengths_B: np.ndarray
    anchors_BA: np.ndarray
    prompts_B: np.ndarray
    """Number of prompt tokens of each text."""


class Batches:
    """The batch of each step, by `batches[step]`."""

    def __init__(self, texts: list[Text], settings: TrainSettings) -> None:
        self.settings = settings
        self.texts = [text for text in texts if usable(text, settings)]
        if not self.texts:
            raise InputError(
                "no text is left to train on: all answers are too short (fewer than three tokens), or prompts longer "
                f"than --length ({settings.length})"
            )
        self.left_out = len(texts) - len(self.texts)
        lengths = [min(len(text.tokens), settings.length) for text in self.texts]
        self.buckets = {
            width: np.array([index for index, length in enumerate(lengths) if low < length <= width])
            for width, low in _widths(settings)
        }
        self.buckets = {width: members for width, members in self.buckets.items() if len(members)}
        self._epoch: tuple[int, list[tuple[int, np.ndarray]]] | None = None

    @property
    def coverage(self) -> dict[str, int]:
        """How many of the texts are used, left out and cut off."""
        cut = sum(len(text.tokens) > self.settings.length for text in self.texts)
        return {"texts_used": len(self.texts), "texts_left_out": self.left_out, "texts_cut": cut}

    @property
    def steps_per_epoch(self) -> int:
        return sum(-(-len(members) // self._rows(width)) for width, members in self.buckets.items())

    def __getitem__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        width, members = self._epoch[1][place]
        chance = np.random.default_rng([self.settings.seed, 1, step])
        return make_batch([self.texts[index] for index in members], width, self._anchors(width), chance)

    def _rows(self, width: int) -> int:
        return self.settings.texts * (self.settings.length // width)

    def _anchors(self, width: int) -> int:
        return max(1, self.settings.anchors // (self.settings.length // width))

    def _order(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        chance = np.random.default_rng([self.settings.seed, 0, epoch])
        batches: list[tuple[int, np.ndarray]] = []
        for width, members in self.buckets.items():
            rows = self._rows(width)
            # The last batch is filled up with texts of the same bucket.
            count = -(-len(members) // rows) * rows
            shuffled = np.concatenate([chance.permutation(members) for _ in range(-(-count // len(members)))])[:count]
            batches += [(width, part) for part in shuffled.reshape(-1, rows)]
        return [batches[index] for index in chance.permutation(len(batches))]


def usable(text: Text, settings: TrainSettings) -> bool:
    """Whether enough of the answer is left to train on once the text is cut to `--length`."""
    minimum = _MIN_CHAINED_ANSWER if settings.has_anchors else _MIN_ANSWER
    return min(len(text.tokens), settings.length) - text.prompt_length >= minimum


def _widths(settings: TrainSettings) -> list[tuple[int, int]]:
    """Bucket widths, each with the width of the next narrower bucket (0 for the last)."""
    widths = [settings.length]
    while widths[-1] % 2 == 0 and widths[-1] // 2 >= _MIN_WIDTH and settings.anchors % (2 ** len(widths)) == 0:
        widths.append(widths[-1] // 2)
    return list(zip(widths, [*widths[1:], 0], strict=True))


def make_batch(texts: list[Text], width: int, anchors: int, chance: np.random.Generator) -> Batch:
    ids_BT = np.zeros((len(texts), width), dtype=np.int64)
    lengths = np.array([min(len(text.tokens), width) for text in texts])
    for row, text in enumerate(texts):
        ids_BT[row, : lengths[row]] = text.tokens[: lengths[row]]
    # Anchors: from the last token of the prompt to the last token whose first mask still has a token to predict.
    prompts = np.array([text.prompt_length for text in texts])
    first = prompts[:, None] - 1
    drawn = chance.random((len(texts), anchors)) * (lengths[:, None] - 2 - first)
    return Batch(ids_BT, lengths, np.sort(first + drawn.astype(np.int64), axis=1), prompts)
