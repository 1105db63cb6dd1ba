"""How good a conversion is, whatever the machine: the walk that exact decoding takes with masks at every node.

All chains off all positions of an answer are run in parallel; then the walk is played. The forward that reads the
prompt writes one token; every later one takes the drafts that its predecessor's masks left where the path ended, as far
as they are the answer's own, and one token more.

Shape letters: B texts, A anchors, K masks of a chain, X = B x A chains, C model width.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stridelm.model.passes import ChainPass
from stridelm.model.student import OutputHead, Student, read_texts
from stridelm.train.rollouts import Text

CONTEXT_BUCKETS = (128, 256, 512, 1024, 2048, 4096, 8192)
_HEAD_LOGITS = 2**27


@dataclass(slots=True)
class Tally:
    """Counts that add up over texts."""

    texts: int = 0
    tokens: int = 0
    forwards: int = 0
    reached: list[int] = field(default_factory=list)
    """Per depth, how often a draft was looked at."""
    accepted: list[int] = field(default_factory=list)
    by_context: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Upper border of the context's length -> tokens, forwards."""

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Per depth, how many of the drafts that were looked at were taken."""
        return [taken / seen if seen else 0.0 for taken, seen in zip(self.accepted, self.reached, strict=True)]

    def add(self, other: "Tally") -> None:
        self.texts += other.texts
        self.tokens += other.tokens
        self.forwards += other.forwards
        depths = max(len(self.reached), len(other.reached))
        for name in ("reached", "accepted"):
            ours, theirs = getattr(self, name), getattr(other, name)
            padded = (counts + [0] * (depths - len(counts)) for counts in (ours, theirs))
            setattr(self, name, [sum(pair) for pair in zip(*padded, strict=True)])
        for border, (tokens, forwards) in other.by_context.items():
            self.by_context[border][0] += tokens
            self.by_context[border][1] += forwards


def play(hits_AK: np.ndarray, prompt_length: int, answer_length: int) -> Tally:
    """The walk over one answer. hits[a, d]: the chain off the a-th position proposes the right token at depth d."""
    masks = hits_AK.shape[1]
    tally = Tally(texts=1, reached=[0] * masks, accepted=[0] * masks)
    anchor, written = 0, 1

    def step(tokens: int, context: int) -> None:
        tally.tokens += tokens
        tally.forwards += 1
        border = next((border for border in CONTEXT_BUCKETS if context <= border), CONTEXT_BUCKETS[-1])
        tally.by_context[border][0] += tokens
        tally.by_context[border][1] += 1

    step(1, prompt_length)
    while written < answer_length:
        # The last token of a step is its own draw, so no draft is needed for the last of the answer.
        most = min(masks, answer_length - written - 1)
        taken = 0
        while taken < most:
            tally.reached[taken] += 1
            if not hits_AK[anchor, taken]:
                break
            tally.accepted[taken] += 1
            taken += 1
        emitted = taken + 1
        step(emitted, prompt_length + written)
        written += emitted
        anchor = written - 1
    return tally


class Measure:
    """Measures texts that hold greedy answers of the base model."""

    def __init__(self, teacher: Any, student: Student, *, with_sequential: bool = True) -> None:
        self.teacher = teacher
        self.student = student
        self.with_sequential = with_sequential
        self.head = OutputHead(teacher)
        self.rows = 65536 if teacher.device.type == "cuda" else 8192

    @torch.no_grad()
    def __call__(self, texts: Iterable[Text]) -> Iterator[tuple[Text, Tally]]:
        """Every text with its tally, shortest first."""
        waiting: list[Text] = []
        for text in sorted(texts, key=lambda text: len(text.tokens)):
            longest = max((_anchors(other) for other in [*waiting, text]), default=0)
            if waiting and longest * (len(waiting) + 1) * self.student.masks > self.rows:
                yield from self._measure(waiting)
                waiting = []
            waiting.append(text)
        if waiting:
            yield from self._measure(waiting)

    def _measure(self, texts: list[Text]) -> Iterator[tuple[Text, Tally]]:
        width, anchors = max(len(text.tokens) for text in texts), max(map(_anchors, texts))
        masks = self.student.masks
        ids_BT = np.zeros((len(texts), width), dtype=np.int64)
        anchors_BA = np.zeros((len(texts), anchors), dtype=np.int64)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text.tokens)] = text.tokens
            anchors_BA[row] = np.minimum(text.prompt_length - 1 + np.arange(anchors), len(text.tokens) - 1)
        with torch.compiler.set_stance("force_eager"):
            drafts = self._drafts(ids_BT, anchors_BA).reshape(len(texts), anchors, masks)
        for row, text in enumerate(texts):
            # The mask at depth d of the chain off position a proposes the token at a + d + 1.
            wanted = anchors_BA[row][:, None] + np.arange(2, masks + 2)
            within = wanted < len(text.tokens)
            right = np.where(within, text.tokens[np.minimum(wanted, len(text.tokens) - 1)], -1)
            yield text, play(drafts[row] == right, text.prompt_length, len(text.tokens) - text.prompt_length)

    def _drafts(self, ids_BT: np.ndarray, anchors_BA: np.ndarray) -> np.ndarray:
        """The tokens that the chains propose when the tokens before each draft are the answer's own."""
        device, (texts, width) = self.teacher.device, ids_BT.shape
        ids = torch.from_numpy(ids_BT).to(device)
        pass_, _ = read_texts(self.teacher, ids)
        chains = ChainPass(pass_, torch.from_numpy(anchors_BA).to(device), self.student.masks)
        outputs_XKC = self.student.outputs(chains)
        if self.student.sequential is not None and self.with_sequential:
            places = chains.positions.clamp(max=width - 1) + (torch.arange(texts, device=device) * width)[:, None, None]
            before = self.teacher.get_input_embeddings()(ids.flatten()[places.flatten()]).view_as(outputs_XKC)
            outputs_XKC = outputs_XKC + self.student.sequential.along(outputs_XKC.float(), before.float())
        rows = outputs_XKC.flatten(0, 1)
        parts = rows.split(max(1, _HEAD_LOGITS // self.head.linear.weight.shape[0]))
        return torch.cat([self.head(part).argmax(dim=-1) for part in parts]).cpu().numpy()


def _anchors(text: Text) -> int:
    """Positions from which drafts may come: the last of the prompt and all of the answer but its last two."""
    return max(1, len(text.tokens) - text.prompt_length)


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole
