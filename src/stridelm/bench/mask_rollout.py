"""Hundreds of answers side by side, several tokens per forward each: decoders with masks where throughput counts.

The serving engine looks at each sequence by itself, which on a GPU takes a hundred times as long as the forward. Here
every pass has one shape: P real rows for each of B places (what was written last, then what was drafted, then nothing),
and, off the last row that stands, a chain of masks. Two runs through the layers, where the engine has one: the masks of
the only row that matters cost less than masks at all of them, and say the same.

    self, tolerance    pending d1 d2 d3     verified in turn; the masks off the last that stands draft the next ones
    adaptive, static   p1 p2 p3             all stand; what the masks off p3 say stands, too, if they are sure of it

Drafts are one chain, as `stridelm acceptance` walks it; the engine may grow a tree and take a little more. Greedy only.

Shape letters: B places, P real rows of a place, X = B x P, K masks of a chain, W tokens that are read of the cache,
C model width, V vocabulary, G key-value heads, H query heads, D head size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stridelm.bench.answering import Answered
from stridelm.decode.table import THRESHOLD
from stridelm.model.adapter import load_adapter
from stridelm.model.converted import load_converted
from stridelm.model.encode import encode_prompt
from stridelm.model.load import Checkpoint
from stridelm.model.passes import ChainPass, TextPass, attend_dense
from stridelm.model.preview import adapter_folder
from stridelm.model.student import CHUNK_LOGITS, MaskRows, OutputHead, Student, run
from stridelm.params import InputError
from stridelm.settings import PLAIN, DecodeSettings, LoadSettings

_READ_STEP = 64
"""The cache is read up to a multiple of this."""
_PREFILL_ROWS = 16384
_VERIFIED = (PLAIN, "self")
_UNVERIFIED = ("adaptive", "static")


@dataclass(slots=True)
class _Place:
    """One answer in the making."""

    text: list[int]
    """The prompt and what was written since."""
    prompt_length: int
    room: int
    drafts: list[int] = field(default_factory=list)
    pending: int = 1
    """So many tokens at the text's end are not in the cache yet."""
    forwards: int = 0
    done: bool = False

    def write(self, tokens: list[int], ends: frozenset[int]) -> None:
        """What a forward gave; nothing counts behind an end of text, or when the room is used up."""
        for token in tokens[: self.room]:
            self.text.append(token)
            self.room -= 1
            self.pending += 1
            if token in ends:
                self.room = 0
                break
        self.forwards += 1
        self.done = self.room == 0


class MaskRollout:
    """A model that was loaded with `trainable`, and what makes its masks."""

    def __init__(self, checkpoint: Checkpoint, student: Student | MaskRows | None, batch: int) -> None:
        """`student` as `Student.of` gives it; None decodes plainly only. `batch`: answers at once."""
        self.checkpoint, self.student, self.batch = checkpoint, student, batch
        self.network: Any = checkpoint.network
        self.device: torch.device = self.network.device
        self.k = 0 if student is None else student.masks + 1
        self.is_exact = checkpoint.is_verified_exactly
        self.head = OutputHead(checkpoint.network)

    @classmethod
    def load(cls, model: str, adapter: str | Path | None, settings: LoadSettings, batch: int) -> "MaskRollout":
        """As `stridelm.load` takes them: a base model and its adapter, or a converted model that stands alone."""
        folder = adapter_folder(model, adapter)
        given = None if folder is None else (folder, load_adapter(folder))
        checkpoint, converted = load_converted(model, settings, given, trainable=True)
        if converted is None:
            return cls(checkpoint, None, batch)
        if converted.config.targets:
            return cls(checkpoint, Student.of(checkpoint.network, converted), batch)
        return cls(checkpoint, MaskRows(checkpoint.network, converted, converted.config.masks), batch)

    @torch.inference_mode()
    def __call__(self, prompts: list[str], settings: DecodeSettings, max_tokens: int) -> list[Answered]:
        if settings.decoder not in (*_VERIFIED, *_UNVERIFIED):
            raise InputError(f"{settings.decoder} is not among the decoders that are measured side by side")
        settings.check(has_draft=False, mask_k=self.k)
        encoded = [encode_prompt(self.checkpoint, prompt) for prompt in prompts]
        longest = max(map(len, encoded)) + max_tokens
        if longest > self.checkpoint.context_length:
            raise InputError(f"prompt and answer may take {longest} tokens, more than the context: ask for fewer")
        answers: list[Answered] = []
        for start in range(0, len(prompts), self.batch):
            places = [_Place(list(tokens), len(tokens), max_tokens) for tokens in encoded[start : start + self.batch]]
            _Batch(self, places, settings).run()
            answers += [self._answered(place) for place in places]
        return answers

    def _answered(self, place: _Place) -> Answered:
        tokens = place.text[place.prompt_length :]
        tokenizer: Any = self.checkpoint.tokenizer
        return Answered(tuple(tokens), tokenizer.decode(tokens, skip_special_tokens=True), place.forwards)


class _Batch:
    """Answers that are written together, from their prompts to the last of them."""

    def __init__(self, owner: MaskRollout, places: list[_Place], settings: DecodeSettings) -> None:
        self.owner, self.places, self.settings = owner, places, settings
        self.verifies = settings.decoder in _VERIFIED
        k = (settings.k_max if settings.decoder == "adaptive" else settings.k) or owner.k
        self.masks = 0 if settings.decoder == PLAIN else min(k, owner.k) - 1
        self.rows = self.masks + 1
        self.threshold = THRESHOLD if settings.threshold is None else settings.threshold
        if settings.decoder == "static":
            self.threshold = 0.0
        longest = max(len(place.text) + place.room for place in places) + self.rows
        self.width = -(-longest // _READ_STEP) * _READ_STEP
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.order_B = torch.arange(len(places), device=owner.device)

    def run(self) -> None:
        self._read_prompts()
        while not all(place.done for place in self.places):
            self._step()

    def _read_prompts(self) -> None:
        """All but the last token of each: that one is pending."""
        device = self.owner.device
        order = sorted(range(len(self.places)), key=lambda number: len(self.places[number].text))
        while order:
            longest = len(self.places[order[-1]].text)
            count = max(1, _PREFILL_ROWS // longest)
            group, order = order[-count:], order[:-count]
            ids = torch.zeros(len(group), longest, dtype=torch.int64)
            for row, number in enumerate(group):
                text = self.places[number].text
                ids[row, : len(text)] = torch.tensor(text)
            texts = TextPass(len(group), longest)
            positions = torch.arange(longest, device=device).repeat(len(group))[None]
            run(self.owner.network, texts, positions, input_ids=ids.to(device).reshape(1, -1))
            which = torch.tensor(group, device=device)
            for layer, parts in texts.layers.items():
                if layer not in self.layers:
                    self.layers[layer] = self._memory(parts[0]), self._memory(parts[1])
                for memory, part in zip(self.layers[layer], parts, strict=True):
                    memory[which, :, :longest] = part

    def _memory(self, like_NGPD: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like_NGPD.shape
        return like_NGPD.new_zeros(len(self.places), heads, self.width, size)

    def _step(self) -> None:
        """One forward of every answer that is not finished; the others go through it and nobody looks."""
        device = self.owner.device
        ids, starts = [], []
        for place in self.places:
            known = place.text[len(place.text) - place.pending :] + place.drafts
            ids.append([*known, *[0] * (self.rows - len(known))][: self.rows])
            starts.append(min(len(place.text) - place.pending, self.width - self.rows))
        ids_BP = torch.tensor(ids, device=device)
        starts_B = torch.tensor(starts, device=device)
        reach = min(self.width, -(-(max(starts) + self.rows) // _READ_STEP) * _READ_STEP)
        rows = _RealRows(self, starts_B, reach)
        hidden_XC = run(self.owner.network, rows, rows.positions_BP.reshape(1, -1), input_ids=ids_BP.reshape(1, -1))
        hidden_BPC = hidden_XC.view(len(ids), self.rows, -1)
        accepted = self._verify(ids_BP, hidden_BPC) if self.verifies else [[] for _ in ids]
        anchors = [place.pending - 1 + len(own) for place, own in zip(self.places, accepted, strict=True)]
        anchors_B = torch.tensor([min(anchor, self.rows - 1) for anchor in anchors], device=device)
        logits_BV = self.owner.head(hidden_BPC[self.order_B, anchors_B])
        drawn_B = logits_BV.argmax(dim=-1)
        tokens_KB, likely_KB = self._masks(reach, starts_B + anchors_B, drawn_B)
        sure_B = _probability(logits_BV, drawn_B)
        self._write(accepted, drawn_B.tolist(), sure_B.tolist(), tokens_KB, likely_KB)

    def _verify(self, ids_BP: torch.Tensor, hidden_BPC: torch.Tensor) -> list[list[int]]:
        """The drafts of every place that stand, root first."""
        proposed_BP = ids_BP.roll(-1, dims=1)
        allowed = math.log1p(-self.settings.tolerance)
        stands: list[torch.Tensor] = []
        part = max(1, CHUNK_LOGITS // len(self.owner.head.linear.weight))
        for hidden, proposed in zip(
            hidden_BPC.flatten(0, 1).split(part), proposed_BP.flatten().split(part), strict=True
        ):
            logits = self.owner.head(hidden)
            best, at = logits.max(dim=-1)
            stood = at == proposed
            if self.settings.tolerance:
                stood |= logits.gather(1, proposed[:, None])[:, 0] >= best + allowed
            stands.append(stood)
        stands_BP = torch.cat(stands).view(ids_BP.shape).tolist()
        ends = self.owner.checkpoint.eos_ids
        found: list[list[int]] = []
        for place, stands_P in zip(self.places, stands_BP, strict=True):
            accepted: list[int] = []
            for draft, stood in zip(place.drafts, stands_P, strict=False):
                if not stood or (accepted and accepted[-1] in ends):
                    break
                accepted.append(draft)
            found.append(accepted)
        return found

    def _masks(
        self, reach: int, anchors_B: torch.Tensor, drawn_B: torch.Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        """What the masks off the anchors say once they know what was drawn there, by depth, and how likely it is."""
        student, count = self.owner.student, len(self.places)
        if not self.masks or student is None:
            return [], []
        texts = TextPass(count, reach)
        texts.layers = {layer: (key[:, :, :reach], value[:, :, :reach]) for layer, (key, value) in self.layers.items()}
        outputs_BKC = student.outputs(ChainPass(texts, anchors_B[:, None], student.masks))[:, : self.masks]
        head = student.sequential
        state_BS = None if head is None else head.start(count)
        tokens: list[torch.Tensor] = []
        likely: list[torch.Tensor] = []
        before_B = drawn_B
        for depth in range(self.masks):
            output_BC = outputs_BKC[:, depth].float()
            if head is not None and state_BS is not None:
                before_BC = self.owner.network.get_input_embeddings()(before_B).float()
                added_BC, state_BS = head(output_BC, before_BC, state_BS)
                output_BC = output_BC + added_BC
            logits_BV = self.owner.head(output_BC)
            before_B = logits_BV.argmax(dim=-1)
            tokens.append(before_B)
            likely.append(_probability(logits_BV, before_B))
        return torch.stack(tokens).tolist(), torch.stack(likely).tolist()

    def _write(
        self,
        accepted: list[list[int]],
        drawn: list[int],
        sure: list[float],
        tokens_KB: list[list[int]],
        likely_KB: list[list[float]],
    ) -> None:
        ends = self.owner.checkpoint.eos_ids
        for number, place in enumerate(self.places):
            if place.done:
                continue
            said = [(tokens[number], likely[number]) for tokens, likely in zip(tokens_KB, likely_KB, strict=True)]
            place.pending = 0
            if self.verifies:
                place.write([*accepted[number], drawn[number]], ends)
                place.pending = 1
                place.drafts = [token for token, _ in said][: max(0, place.room - 1)]
            else:
                place.write([drawn[number], *_confident(sure[number], said, self.threshold)], ends)


def _confident(first: float, said: list[tuple[int, float]], threshold: float) -> Iterator[int]:
    """The leading run of what the masks are sure of; the first token, the model's own, stands whatever it is."""
    if first < threshold:
        return
    for token, probability in said:
        if probability < threshold:
            return
        yield token


def _probability(logits_BV: torch.Tensor, tokens_B: torch.Tensor) -> torch.Tensor:
    chosen_B = logits_BV.gather(1, tokens_B[:, None])[:, 0]
    return (chosen_B - logits_BV.logsumexp(dim=-1)).exp()


class _RealRows:
    """P rows for each place: they write their keys and values, and see what their place holds up to themselves."""

    def __init__(self, batch: _Batch, starts_B: torch.Tensor, reach: int) -> None:
        self.batch, self.reach = batch, reach
        self.positions_BP = starts_B[:, None] + torch.arange(batch.rows, device=starts_B.device)
        places_W = torch.arange(reach, device=starts_B.device)
        self.behind_BPW = self.positions_BP[..., None] - places_W

    def attend(
        self,
        layer: int,
        query_HXD: torch.Tensor,
        key_GXD: torch.Tensor,
        value_GXD: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
        sinks_H: torch.Tensor | None = None,
    ) -> torch.Tensor:
        count, rows = self.positions_BP.shape
        memory = self.batch.layers[layer]
        places_B1 = self.batch.order_B[:, None]
        for held_BGTD, part_GXD in zip(memory, (key_GXD, value_GXD), strict=True):
            held_BGTD[places_B1, :, self.positions_BP] = part_GXD.unflatten(1, (count, rows)).permute(1, 2, 0, 3)
        keys_BGWD, values_BGWD = (held[:, :, : self.reach] for held in memory)
        sees_BPW = self.behind_BPW >= 0
        if window is not None:
            sees_BPW = sees_BPW & (self.behind_BPW < window)
        query_BHPD = query_HXD.unflatten(1, (count, rows)).transpose(0, 1)
        output_BHPD = attend_dense(query_BHPD, keys_BGWD, values_BGWD, sees_BPW[:, None], scaling, softcap, sinks_H)
        return output_BHPD.transpose(1, 2).flatten(0, 1)
