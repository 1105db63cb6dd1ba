"""Plain decoding through transformers' layers, greedy or sampled: each step emits one token for every place of
`DenseTexts`. On a GPU a step is a CUDA graph, and the host reads the results of one step while the next one runs.

Shape letters: B places, C model width, V vocabulary.
"""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from stridelm.arrays import signed
from stridelm.backends.common.cuda_graph import Graphed, HostCopy
from stridelm.backends.common.scorer import probability
from stridelm.backends.common.step_seconds import median_seconds
from stridelm.sampling import gumbel_rows
from stridelm.stepper import Continuation, Emitted
from stridelm.train.dense_texts import DenseTexts
from stridelm.train.students.student import OutputHead

NOTHING = Emitted((), ())


@dataclass(eq=False, slots=True)
class _Text:
    length: int
    """Length once all launched steps are done."""
    room: int
    """Tokens that may still be emitted, as of the last collected step; 0 once the text has ended."""
    samples: bool


class DenseStepper:
    """Implements `stepper.Stepper`."""

    obeys = frozenset({"max_tokens", "temperature", "seed", "choice", "eos_ids", "is_traced"})
    plans = False
    drafts = 0
    rows = 1

    def __init__(self, texts: DenseTexts, ends: frozenset[int]) -> None:
        self.texts, self.places, self.ends = texts, texts.places, ends
        # On a GPU the next step can start before the host has read this one. On a CPU that would only delay the host.
        self.max_in_flight = 2 if texts.device.type == "cuda" else 1
        self.head = OutputHead(texts.network)
        self.ids_B, self.positions_B, self.seeds_B, self.choices_B = (
            torch.zeros(self.places, dtype=torch.int64, device=texts.device) for _ in range(4)
        )
        """Per place: id and position of the last token, the next step's input; seed and choice of its noise."""
        self.temperatures_B = torch.zeros(self.places, device=texts.device)
        self._graphed = Graphed(self._step, texts.network, texts.device)
        self._texts: list[_Text | None] = [None] * self.places
        self._begun: dict[int, Continuation] = {}
        """New texts whose state was not yet sent to the device."""
        self._launched: deque[tuple[list[_Text | None], HostCopy]] = deque()

    @property
    def seconds(self) -> float:
        return median_seconds(self)

    def begin(self, place: int, text: Continuation) -> None:
        self.give_blocks(place, text.blocks)
        self._texts[place] = _Text(text.cached, text.room, text.params.temperature > 0)
        self._begun[place] = text

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        """Nothing to do: a place always keeps its own part of the cache."""
        assert tuple(blocks) == (place,), "a place has its own stretch of the cache"

    def end(self, place: int) -> None:
        """Free a place. Its row still runs, and only writes into the place's own part of the cache."""
        self._texts[place] = None
        self._begun.pop(place, None)

    @torch.inference_mode()
    def launch(self, waiting: Items[int] = ()) -> None:
        assert not waiting and len(self._launched) < self.max_in_flight
        self._send_begun()
        texts = [text for text in self._texts if text is not None]
        self._reach = self.texts.reach(1 + max((text.length for text in texts), default=0))
        self._samples = any(text.samples for text in texts)
        result = self._graphed((self._reach, self._samples))
        self._launched.append((list(self._texts), HostCopy(result)))
        for text in texts:
            text.length += 1

    def collect(self) -> list[Emitted]:
        texts, result = self._launched.popleft()
        tokens_B, sure_B = result.wait().tolist()
        return [self._emit(text, int(token), sure) for text, token, sure in zip(texts, tokens_B, sure_B, strict=True)]

    def forget(self) -> None:
        self._launched.clear()
        self._begun.clear()
        self._texts = [None] * self.places

    def _emit(self, text: _Text | None, token: int, sure: float) -> Emitted:
        if text is None or not text.room:
            return NOTHING
        text.room = 0 if token in self.ends else text.room - 1
        return Emitted((token,), (sure,))

    def _send_begun(self) -> None:
        """Send the state of new texts, all at once: a copy per text would take longer than a step."""
        if not self._begun:
            return
        texts = self._begun.values()
        places_N = torch.tensor(list(self._begun), device=self.texts.device)
        for state_B, values in (
            (self.ids_B, [text.pending for text in texts]),
            (self.positions_B, [text.cached for text in texts]),
            (self.seeds_B, [signed(text.seed) for text in texts]),
            (self.choices_B, [text.choice for text in texts]),
            (self.temperatures_B, [text.params.temperature for text in texts]),
        ):
            state_B[places_N] = torch.tensor(values, dtype=state_B.dtype, device=self.texts.device)
        self._begun.clear()

    def _step(self) -> torch.Tensor:
        """Draw the next token of each place, and make it the place's last token. Returns 2 x B: the tokens and the
        model's probabilities of them. The draws of free places are ignored."""
        hidden_B1C = self.texts.run(self.ids_B[:, None], self.positions_B, self._reach)
        logits_BV = self.head(hidden_B1C[:, 0])
        drawn_B = logits_BV.argmax(dim=-1)
        if self._samples:
            best_B1 = logits_BV.amax(dim=-1, keepdim=True)
            scores_BV = (logits_BV - best_B1) / self.temperatures_B[:, None].clamp(min=1e-4)
            noise_BV = gumbel_rows(self.seeds_B, self.positions_B + 1, logits_BV.shape[1], self.choices_B)
            sampled_B = (scores_BV.double() + noise_BV).argmax(dim=-1)
            drawn_B = torch.where(self.temperatures_B > 0, sampled_B, drawn_B)
        self.ids_B.copy_(drawn_B)
        self.positions_B.copy_((self.positions_B + 1).clamp(max=self.texts.width - 1))
        return torch.stack([drawn_B.double(), probability(logits_BV, drawn_B).double()])
