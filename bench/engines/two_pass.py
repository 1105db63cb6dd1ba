"""What an engine accepts that drafts in a pass of its own: vLLM's `draft_model` with `parallel_drafting`, simulated.

    python bench/engines/two_pass.py --adapter FOLDER --prompts bench/prompts/gsm8k_heldout.jsonl --limit 50

The target is the base model, greedy, in float32. After every commit the drafter reads the newest token, the bonus, and
k - 1 masks behind it, on top of its own keys and values of all tokens before:

    drafter   ... t  bonus m  m  m        bonus proposes draft 1, the masks drafts 2 to k
    target    ... t  bonus d1 d2 d3 d4    verifies; the next bonus is its own token behind the last right draft

Draft i is accepted if all before it were and it is the target's greedy token there. The rate at position i is over all
drafts of the run, and what is accepted beyond the end of an answer in its last step counts: both as vLLM's metrics have
it. So 1 + the sum of the rates is vLLM's mean acceptance length, the tokens per step of the target.

An adapter without a gate drafts as the merged model. A gated one's real rows are the target's own, so its first draft
is always right, and its masks draft with their sequential head and, as a second entry, without.

The target's answers are known and a mask sees only what is before it, so one pass runs the chains of all places of an
answer, and the steps are then walked for every k. Entries go to `--json` beside those that are there already.

Shape letters: A places of an answer, K the largest k, T tokens, C model width.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import MASK_EMBEDDING, Adapter, check_base, load_adapter
from stridelm.params import InputError
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.answers import greedy_answers
from stridelm.train.students.passes import ChainPass
from stridelm.train.students.student import OutputHead, Student, read_texts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import RESULTS, script_parser, write


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer of the target, and how it would go on."""

    tokens: np.ndarray
    """The prompt, the answer, and K tokens more, which the target would write if nothing ended the answer."""
    first: int
    """The place of the answer's first token, which is the first bonus."""
    last: int
    """The place of its last token."""


@dataclass(slots=True)
class Tally:
    """Steps that verified drafts, and how often each position was accepted."""

    drafts: int = 0
    accepted: list[int] = field(default_factory=list)

    @property
    def entry(self) -> dict[str, Any]:
        rates = [count / max(self.drafts, 1) for count in self.accepted]
        return {
            "drafts": self.drafts,
            "accepted": self.accepted,
            "rate_by_position": [round(rate, 4) for rate in rates],
            "tokens_per_step": round(1 + sum(rates), 4),
        }


def walk(answer: Answer, proposed_AK: np.ndarray, k: int, tally: Tally) -> None:
    """One answer's steps. proposed[a]: the drafts behind the answer's token number a."""
    tally.accepted += [0] * (k - len(tally.accepted))
    place = answer.first
    while place < answer.last:
        right_k = answer.tokens[place + 1 : place + 1 + k]
        taken = int(np.cumprod(proposed_AK[place - answer.first, :k] == right_k).sum())
        tally.drafts += 1
        for position in range(taken):
            tally.accepted[position] += 1
        place += taken + 1


def shortened(adapter: Adapter, masks: int) -> Adapter:
    """Its first masks alone."""
    tensors = {**adapter.tensors, MASK_EMBEDDING: adapter.mask_embedding[:masks]}
    return replace(adapter, config=replace(adapter.config, masks=masks), tensors=tensors)


class Drafter:
    """An adapter's drafts at all places of an answer."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, k: int) -> None:
        adapter = load_adapter(folder)
        check_base(folder, adapter, checkpoint.name, checkpoint.fingerprint)
        if k > adapter.config.k:
            raise InputError(f"--k: {folder} proposes at most {adapter.config.k} tokens, not {k}")
        adapter = shortened(adapter, k - 1)
        self.is_gated = adapter.is_gated
        self.student = Student.of(checkpoint.network, adapter)
        self.reads = checkpoint.network if adapter.is_gated else self.student.network
        self.head = OutputHead(self.reads)

    @torch.no_grad()
    def __call__(self, answer: Answer) -> dict[str, np.ndarray]:
        """A x K, by the way of drafting."""
        ids_1T = torch.from_numpy(answer.tokens.astype(np.int64))[None].to(self.reads.device)
        anchors_1A = torch.arange(answer.first, answer.last, device=ids_1T.device)[None]
        texts, hidden_TC = read_texts(self.reads, ids_1T)
        chains = ChainPass(texts, anchors_1A, self.student.masks)
        masks_AKC = self.student.outputs(chains)
        of_bonus_A1 = self.head.best(hidden_TC[anchors_1A[0]])[:, None]
        ways = {"masks": masks_AKC}
        if self.student.sequential is not None:
            # Each draft given that those before it are right: no other is looked at.
            width = ids_1T.shape[1]
            before_AKC = self.reads.get_input_embeddings()(ids_1T[0, chains.positions[0].clamp(max=width - 1)])
            added_AKC = self.student.sequential.along(masks_AKC.float(), before_AKC.float())
            ways["masks with the sequential head"] = masks_AKC + added_AKC
        return {
            way: torch.cat([of_bonus_A1, self.head.best(rows.flatten(0, 1)).view(rows.shape[:2])], dim=1).cpu().numpy()
            for way, rows in ways.items()
        }


def answers_of(checkpoint: Checkpoint, prompts: Path, limit: int | None, max_tokens: int, k: int) -> list[Answer]:
    """Of the first so many prompts. `k`: tokens beyond the end."""
    lines = read_prompts(prompts)[:limit]
    endless = replace(checkpoint, eos_ids=frozenset())
    texts = greedy_answers(endless, lines, max_tokens + k, 64, lambda what, done, of: None)
    answers: list[Answer] = []
    for number in range(len(lines)):
        tokens, first = texts[number].tokens, texts[number].prompt_length
        ends = [place for place, token in enumerate(tokens) if place >= first and int(token) in checkpoint.eos_ids]
        last = min([first + max_tokens - 1, len(tokens) - 1 - k, *ends[:1]])
        answers.append(Answer(tokens[: last + 1 + k], first, last))
    return answers


def measured(drafter: Drafter, answers: list[Answer], ks: list[int]) -> Iterator[dict[str, Any]]:
    """An entry per way of drafting and k."""
    tallies: dict[tuple[str, int], Tally] = {}
    agreed = rows = 0
    for answer in answers:
        if answer.last == answer.first:
            continue
        ways = drafter(answer)
        for way, proposed_AK in ways.items():
            for k in ks:
                walk(answer, proposed_AK, k, tallies.setdefault((way, k), Tally()))
        agreed += int((ways["masks"][:, 0] == answer.tokens[answer.first + 1 : answer.last + 1]).sum())
        rows += answer.last - answer.first
    for (way, k), tally in sorted(tallies.items()):
        yield {
            "gate": "mask" if drafter.is_gated else "none",
            "drafts_from": way,
            "k": k,
            "real_rows": rows,
            "real_rows_agree": round(agreed / max(rows, 1), 4),
            **tally.entry,
        }


def entry_name(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What a new measurement replaces an older one by."""
    return tuple(entry[name] for name in ("model", "adapter", "prompts", "answers", "max_tokens", "drafts_from", "k"))


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "two-pass.json")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapter", type=Path, nargs="+", required=True, help="folders, with a gate or without")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, help="of each file, the first so many prompts")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--k", type=int, nargs="+", default=[3, 4, 5, 6], help="drafts a step: one bonus, k - 1 masks")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model, LoadSettings(device=options.device), trainable=True)
    drafters = {folder.resolve().name: Drafter(checkpoint, folder, max(options.k)) for folder in options.adapter}
    measured_before = json.loads(options.json.read_text())["measured"] if options.json.is_file() else []
    report = {entry_name(entry): entry for entry in measured_before}
    for file in options.prompts:
        answers = answers_of(checkpoint, file, options.limit, options.max_tokens, max(options.k))
        for name, drafter in drafters.items():
            where = {
                "model": options.model,
                "adapter": name,
                "prompts": file.name,
                "answers": len(answers),
                "max_tokens": options.max_tokens,
                "device": checkpoint.device,
                "torch": torch.__version__,
            }
            for entry in measured(drafter, answers, options.k):
                report[entry_name(where | entry)] = where | entry
                rates = " ".join(f"{rate:.3f}" for rate in entry["rate_by_position"])
                print(
                    f"{file.name}, {name}, {entry['drafts_from']}, k {entry['k']}: {entry['tokens_per_step']:.2f} "
                    f"tokens per step, by position {rates}; real rows agree {entry['real_rows_agree']:.3f}",
                    flush=True,
                )
            write(options.json, {"measured": list(report.values())})


if __name__ == "__main__":
    main()
