"""How good a conversion is, independent of the machine: simulates exact decoding with masks at every node.

The forward pass that reads the prompt emits one token. Each later pass accepts the drafts proposed by the previous
pass's masks at the point where its accepted path ended, as long as they agree with the answer, and emits one more
token. The answer and its keys and values are known in advance, so many texts are simulated side by side, and only the
chains that are reached are run: a third of all. Heads and draft models are measured in the same way.

Shape letters: B texts, T tokens of a text, K masks of a chain, C model width.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from stridelm.train.rollouts import Text
from stridelm.train.students.passes import ChainPass
from stridelm.train.students.student import OutputHead, computing_in, flat_places, read_texts

_MIN_BORDER = 128
_CACHED_TOKENS = 16384
"""Maximum number of tokens, padding included, of the texts that are measured side by side."""


@dataclass(slots=True)
class Tally:
    """Counts that add up over texts."""

    texts: int = 0
    tokens: int = 0
    forwards: int = 0
    reached: list[int] = field(default_factory=list)
    """Per depth, how often a draft was checked."""
    accepted: list[int] = field(default_factory=list)
    by_context: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Upper limit of the context's length -> tokens, forward passes."""

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Per depth, the fraction of the checked drafts that were accepted."""
        return [taken / seen if seen else 0.0 for taken, seen in zip(self.accepted, self.reached, strict=True)]

    @property
    def entry(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return {
            "tokens_per_forward": self.tokens_per_forward,
            "acceptance": [round(rate, 4) for rate in self.acceptance],
        }

    @property
    def sentence(self) -> str:
        """For a person."""
        rates = " ".join(f"{rate:.2f}" for rate in self.acceptance)
        return (
            f"{self.tokens_per_forward:.2f} tokens per forward on {self.texts} held-out prompts, acceptance by depth "
            f"{rates}"
        )

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


class Walk:
    """Decoding of one answer: how many of the available drafts each forward pass accepts."""

    def __init__(self, prompt_length: int, answer_length: int, masks: int) -> None:
        self.prompt_length = prompt_length
        self.answer_length = answer_length
        self.tally = Tally(texts=1, reached=[0] * masks, accepted=[0] * masks)
        self._emit(1)  # the forward that reads the prompt has no drafts yet

    @property
    def is_over(self) -> bool:
        return self.tally.tokens == self.answer_length

    @property
    def anchor(self) -> int:
        """The position whose chain gives the next forward pass its drafts: the one before the last emitted token."""
        return self.prompt_length + self.tally.tokens - 2

    def step(self, hits_K: np.ndarray) -> None:
        """One forward pass. hits[d]: whether the anchor's chain proposes the answer's own token at depth d."""
        # The last token of a step is drawn, not drafted, so the answer's last token needs no draft.
        limit = min(len(hits_K), self.answer_length - self.tally.tokens - 1)
        taken = 0
        while taken < limit:
            self.tally.reached[taken] += 1
            if not hits_K[taken]:
                break
            self.tally.accepted[taken] += 1
            taken += 1
        self._emit(taken + 1)

    def _emit(self, tokens: int) -> None:
        context = self.prompt_length + self.tally.tokens
        border = max(_MIN_BORDER, 1 << (context - 1).bit_length())  # a power of two
        self.tally.tokens += tokens
        self.tally.forwards += 1
        self.tally.by_context[border][0] += tokens
        self.tally.by_context[border][1] += 1


Propose = Callable[[torch.Tensor], torch.Tensor]
"""Anchors (B x 1) -> the tokens proposed from there (B x K). Each draft assumes that the drafts before it are the
text's own tokens, since drafts behind a wrong one are not checked."""


class Reader(Protocol):
    """Anything that proposes tokens and can be measured."""

    drafts: int
    """K: number of proposals from one anchor."""
    device: torch.device

    def __call__(self, ids_BT: torch.Tensor) -> Propose:
        """Read the texts; returns a function that proposes from anchors in them."""
        ...


class MaskReader:
    """Chains of masks."""

    def __init__(self, teacher: Any, student: Any, *, with_sequential: bool = True) -> None:
        """`student` is a Student or a FullStudent. The text is read by the student if its real rows are trained,
        otherwise by the teacher."""
        self.reads = student.network if student.judges_anchor else teacher
        self.student = student
        self.drafts = student.masks
        self.device = teacher.device
        self.sequential = student.sequential if with_sequential else None
        self.head = OutputHead(student.network)

    def __call__(self, ids_BT: torch.Tensor) -> Propose:
        texts, _ = read_texts(self.reads, ids_BT)

        def propose(anchors_B1: torch.Tensor) -> torch.Tensor:
            chains = ChainPass(texts, anchors_B1, self.drafts)
            outputs_BKC = self.student.outputs(chains)
            if self.sequential is not None:
                before_BKC = self.reads.get_input_embeddings()(ids_BT.gather(1, chains.positions[:, 0]))
                outputs_BKC = outputs_BKC + self.sequential.along(outputs_BKC.float(), before_BKC.float())
            return self.head.best(outputs_BKC.flatten(0, 1)).view(len(ids_BT), -1)

        return propose


class HeadsReader:
    """Prediction heads on the anchor's final hidden state."""

    def __init__(self, teacher: Any, heads: Any) -> None:
        self.teacher, self.heads = teacher, heads
        self.drafts: int = heads.k - 1
        self.device = teacher.device
        self.head = OutputHead(teacher)

    def __call__(self, ids_BT: torch.Tensor) -> Propose:
        _, hidden_NC = read_texts(self.teacher, ids_BT)

        def propose(anchors_B1: torch.Tensor) -> torch.Tensor:
            anchors_BC = hidden_NC[flat_places(anchors_B1, ids_BT.shape[1])]
            outputs_BKC = self.heads(anchors_BC.float())
            return self.head.best(outputs_BKC.flatten(0, 1)).view(len(ids_BT), -1)

        return propose


class ModelReader:
    """A draft model, which continues from the newest token."""

    def __init__(self, network: Any, drafts: int) -> None:
        self.network, self.drafts = network, drafts
        self.device = network.device
        self.head = OutputHead(network)

    def __call__(self, ids_BT: torch.Tensor) -> Propose:
        dtype = self.head.linear.weight.dtype  # the target's; layers that are trained are float32
        with computing_in(dtype, self.device):
            _, hidden_NC = read_texts(self.network, ids_BT)
        best_BT = self.head.best(hidden_NC).view_as(ids_BT)

        def propose(anchors_B1: torch.Tensor) -> torch.Tensor:
            return best_BT.gather(1, anchors_B1 + torch.arange(1, self.drafts + 1, device=self.device))

        return propose


class Measure:
    """Measures texts that hold greedy answers of the base model, many side by side."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @torch.no_grad()
    def __call__(self, texts: Iterable[Text]) -> Iterator[tuple[Text, Tally]]:
        """Every text with its tally. Texts with answers of similar length run together, so that they end together."""
        waiting: list[Text] = []
        for text in sorted(texts, key=lambda text: len(text.tokens) - text.prompt_length):
            width = max(len(other.tokens) for other in [*waiting, text])
            if waiting and width * (len(waiting) + 1) > _CACHED_TOKENS:
                yield from self._measure(waiting)
                waiting = []
            waiting.append(text)
        if waiting:
            yield from self._measure(waiting)

    def _measure(self, texts: list[Text]) -> Iterator[tuple[Text, Tally]]:
        drafts = self.reader.drafts
        # Padding of -1 behind the end: the last chains reach beyond it, and nothing there counts as a hit.
        ids_BT = np.full((len(texts), max(len(text.tokens) for text in texts) + drafts + 1), -1)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text.tokens)] = text.tokens
        walks = [Walk(text.prompt_length, len(text.tokens) - text.prompt_length, drafts) for text in texts]
        with torch.compiler.set_stance("force_eager"):
            propose = self.reader(torch.from_numpy(ids_BT.clip(min=0)).to(self.reader.device))
            while not all(walk.is_over for walk in walks):
                anchors_B1 = np.array([[walk.anchor] for walk in walks])
                drafts_BK = propose(torch.from_numpy(anchors_B1).to(self.reader.device)).cpu().numpy()
                # The draft at depth d off position a proposes the token at a + d + 1.
                right_BK = np.take_along_axis(ids_BT, anchors_B1 + np.arange(2, drafts + 2), axis=1)
                for walk, hits_K in zip(walks, drafts_BK == right_BK, strict=True):
                    if not walk.is_over:
                        walk.step(hits_K)
        yield from zip(texts, (walk.tally for walk in walks), strict=True)


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole
