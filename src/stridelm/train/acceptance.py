"""How good a conversion is, independent of the machine: simulates exact decoding with masks at every node.

The forward pass that reads the prompt emits one token. Each later pass accepts the drafts proposed by the previous
pass's masks at the point where its accepted path ended, as long as they agree with the answer, and emits one more
token. The answer and its keys and values are known in advance, so many texts are simulated side by side, and only the
chains that are reached are run: a third of all. Heads and draft models are measured in the same way. Sampled answers
are known in advance, too: their noise is a function of seed and position, and drafts are drawn with the same.

Shape letters: B texts, T tokens of a text, F forms of drafting, K drafts of a chain.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch

from stridelm.arrays import signed
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.train.answers import loop_start
from stridelm.train.chain_scorer import Noise
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import CHAIN, Form, MaskReader, Reader

Name = TypeVar("Name", bound=Hashable)
_MIN_BORDER = 128
_CACHED_TOKENS = 16384
"""Maximum number of tokens, padding included, of the texts that are measured side by side."""
_CACHED_ON_GPU = 2**18
"""The same on a GPU, if there is memory for them."""
_BYTES_PER_TOKEN = 2**19
"""Free memory that a token needs on a GPU: an 8B model's keys, values and what passes hold beside them, twice."""


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
    loops: int = 0
    """Number of answers that end in a loop."""
    before_loops: list[int] = field(default_factory=lambda: [0, 0])
    """Tokens, forward passes: of the passes whose first token lies before the loop that its answer ends in, if any."""

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_forward_before_loops(self) -> float:
        tokens, forwards = self.before_loops
        return tokens / forwards if forwards else 0.0

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
    def figures(self) -> dict[str, Any]:
        """For the results of a measurement."""
        tokens, forwards = self.before_loops
        return {
            "prompts_measured": self.texts,
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens_per_forward": round(self.tokens_per_forward, 4),
            "acceptance_by_depth": [round(rate, 4) for rate in self.acceptance],
            "answers_with_loops": self.loops,
            "before_loops": {
                "tokens": tokens,
                "forwards": forwards,
                "tokens_per_forward": round(self.tokens_per_forward_before_loops, 4),
            },
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
        self.loops += other.loops
        self.before_loops = [sum(pair) for pair in zip(self.before_loops, other.before_loops, strict=True)]


class Walk:
    """Decoding of one answer: how many of the available drafts each forward pass accepts."""

    def __init__(self, prompt_length: int, answer_length: int, masks: int, loop_start: int | None = None) -> None:
        """`loop_start`: the place in the answer where the loop begins that it ends in; None if there is none."""
        self.prompt_length = prompt_length
        self.answer_length = answer_length
        self.loop_start = answer_length if loop_start is None else loop_start
        self.tally = Tally(
            texts=1, reached=[0] * masks, accepted=[0] * masks, loops=int(self.loop_start < answer_length)
        )
        self._emit(1)  # the forward that reads the prompt has no drafts yet

    @property
    def is_over(self) -> bool:
        return self.tally.tokens == self.answer_length

    @property
    def anchor(self) -> int:
        """The position whose chain gives the next forward pass its drafts: the one before the last emitted token."""
        return self.prompt_length + self.tally.tokens - 2

    def step(self, hits_K: np.ndarray) -> None:
        """One forward pass. hits[d]: whether the answer's own token is drafted at depth d from the anchor."""
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
        if self.tally.tokens < self.loop_start:
            self.tally.before_loops[0] += tokens
            self.tally.before_loops[1] += 1
        self.tally.tokens += tokens
        self.tally.forwards += 1
        self.tally.by_context[border][0] += tokens
        self.tally.by_context[border][1] += 1


class Measure:
    """Measures texts that hold answers of the base model, many side by side."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __call__(self, texts: Iterable[Text]) -> Iterator[tuple[Text, Tally]]:
        """Every text with its tally by the reader's first form of drafting."""
        for text, tallies in self.by_form(texts):
            yield text, tallies[0]

    @torch.no_grad()
    def by_form(self, texts: Iterable[Text]) -> Iterator[tuple[Text, tuple[Tally, ...]]]:
        """Every text with a tally per form of drafting. Texts with answers of similar length run together, so that they
        end together. All must be drawn at the same temperature."""
        most, waiting, width = _tokens_side_by_side(self.reader.device), list[Text](), 0
        for text in sorted(texts, key=lambda text: len(text.tokens) - text.prompt_length):
            width = max(width, len(text.tokens))
            if waiting and width * (len(waiting) + 1) > most:
                yield from self._measure(waiting)
                waiting, width = [], len(text.tokens)
            waiting.append(text)
        if waiting:
            yield from self._measure(waiting)

    def _measure(self, texts: list[Text]) -> Iterator[tuple[Text, tuple[Tally, ...]]]:
        drafts, device = self.reader.drafts, self.reader.device
        # Padded behind the end: the last chains reach beyond it, where no walk looks.
        ids_BT = np.zeros((len(texts), max(len(text.tokens) for text in texts) + drafts + 1), dtype=np.int64)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text.tokens)] = text.tokens
        walks = [[_walk(text, drafts) for _ in self.reader.forms] for text in texts]
        with torch.compiler.set_stance("force_eager"):
            judge = self.reader(torch.from_numpy(ids_BT).to(device), _noise(texts, device))
            while not all(walk.is_over for row in walks for walk in row):
                anchors_BF = torch.tensor([[walk.anchor for walk in row] for row in walks], device=device)
                hits_BFK = judge(anchors_BF).cpu().numpy()
                for row, hits_FK in zip(walks, hits_BFK, strict=True):
                    for walk, hits_K in zip(row, hits_FK, strict=True):
                        if not walk.is_over:
                            walk.step(hits_K)
        for text, row in zip(texts, walks, strict=True):
            yield text, tuple(walk.tally for walk in row)


def _tokens_side_by_side(device: torch.device) -> int:
    if device.type != "cuda":
        return _CACHED_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return min(_CACHED_ON_GPU, max(_CACHED_TOKENS, free // _BYTES_PER_TOKEN))


def _walk(text: Text, drafts: int) -> Walk:
    answer = text.tokens[text.prompt_length :]
    return Walk(text.prompt_length, len(answer), drafts, loop_start(answer))


def _noise(texts: list[Text], device: torch.device) -> Noise | None:
    temperature = texts[0].temperature
    assert all(text.temperature == temperature for text in texts), "texts are measured by temperature"
    if temperature == 0:
        return None
    return Noise(temperature, torch.tensor([signed(text.seed) for text in texts], device=device))


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


@dataclass(frozen=True, slots=True)
class Summary:
    """What was measured on some texts, together and by category."""

    whole: Tally
    categories: dict[str, Tally]

    @classmethod
    def of(cls, measured: Iterable[tuple[Text, Tally]]) -> "Summary":
        """Categories are in the order in which they occur."""
        whole, categories = Tally(), defaultdict[str, Tally](Tally)
        for text, tally in measured:
            whole.add(tally)
            if text.category is not None:
                categories[text.category].add(tally)
        return cls(whole, dict(categories))

    @property
    def mean(self) -> float:
        """Over the categories."""
        return fmean(tally.tokens_per_forward for tally in self.categories.values())

    @property
    def mean_before_loops(self) -> float:
        """Over the categories, without those whose answers are loops from the first token."""
        kept = [tally.tokens_per_forward_before_loops for tally in self.categories.values() if tally.before_loops[1]]
        return fmean(kept) if kept else 0.0

    @property
    def entry(self) -> dict[str, Any]:
        """For JSON."""
        entry = self.whole.figures
        if self.categories:
            entry["mean_over_categories"] = round(self.mean, 4)
            entry["mean_over_categories_before_loops"] = round(self.mean_before_loops, 4)
            entry["categories"] = {name: tally.figures for name, tally in self.categories.items()}
        entry["context"] = {
            f"<={border}": {"tokens": tokens, "forwards": forwards, "tokens_per_forward": round(tokens / forwards, 4)}
            for border, (tokens, forwards) in sorted(self.whole.by_context.items())
        }
        return entry


def measure_forms(
    checkpoint: Checkpoint, student: Any, texts_by_name: Mapping[Name, Items[Text]], *, trees: Items[int] = (16, 64)
) -> dict[Name, dict[str, Any]]:
    """Name of some texts -> form of drafting -> figures (`Summary.entry`): chains, and trees of so many rows. `student`
    is a Student, a FullStudent or MaskRows; the texts of one name are drawn at the same temperature."""
    forms: tuple[Form, ...] = (*CHAIN, *trees)
    measure = Measure(MaskReader(checkpoint.network, student, forms=forms, ends=checkpoint.eos_ids))
    found: dict[Name, dict[str, Any]] = {}
    for name, texts in texts_by_name.items():
        tallies = {id(text): each for text, each in measure.by_form(texts)}
        found[name] = {
            form_name(form): Summary.of((text, tallies[id(text)][place]) for text in texts).entry
            for place, form in enumerate(forms)
        }
    return found


def form_name(form: Form) -> str:
    return "chain" if form is None else f"tree of {form} rows"
