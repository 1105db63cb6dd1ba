"""Where drafts fail: chains walked over greedy answers, and every draft that was checked looked at.

    python bench/training/failures.py --prompts bench/prompts/kinds.jsonl --json failures.json

By depth, category, kind of the right token, whether that token occurred shortly before, and how sure the teacher was of
it: how often the draft was wrong, and which share of all wrong drafts that is. Also whether the right token was among
the candidates that the mask itself finds likeliest, and its rank after the sequential head has read. What a choice
among the candidates could gain at most: the tokens per forward if the right one were always chosen where it is there.
And what a head over a shortlist would lose: only drafts among the first ids count, the vocabulary's commonest tokens.

Shape letters: B texts, K drafts of a chain, N real rows of all texts, P drafts that were checked.
"""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.prompts import read_prompts
from stridelm.sampling import DRAFT_CANDIDATES, GREEDY_CANDIDATES
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import Measure, Summary, Tally
from stridelm.train.answers import greedy_answers
from stridelm.train.chain_scorer import Chains, Noise
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import Form, Judge, MaskReader
from stridelm.train.students.student import OutputHead, read_texts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, table, write
from bench.training.acceptance import load_students

SHORTLISTS = (8192, 16384, 32768)
WAYS = (
    "as drafted",
    f"the right one of {GREEDY_CANDIDATES}",
    f"the right one of {DRAFT_CANDIDATES}",
    *(f"as drafted, if among the first {size} ids" for size in SHORTLISTS),
)
"""How a draft is chosen among a mask's candidates. Byte pairs that were merged first, which have the first ids, are
the commonest."""
_LISTED = len(WAYS) - len(SHORTLISTS)
KINDS = (
    "number", "start of a word", "continuation of a word", "punctuation and other signs", "space or newline", "special",
)  # fmt: skip
_NUMBER, _START, _CONTINUATION, _SIGN, _SPACE, _SPECIAL = range(len(KINDS))
_NEAR = 256
"""Tokens before a token, in which it occurred or not."""
SURE, _SURE = ("below 0.3", "0.3 to 0.6", "0.6 to 0.9", "above 0.9"), (0.3, 0.6, 0.9)
AMONG = (f"first {GREEDY_CANDIDATES}", f"first {DRAFT_CANDIDATES}", "beyond")
RANKS, _RANKS = ("1", "2", "3 to 4", "5 to 16", "beyond"), (2, 3, 5, 17)


@dataclass(frozen=True, slots=True)
class Checked:
    """Columns: one entry per draft that was looked at."""

    rows_P: np.ndarray
    """Its text, by number."""
    positions_P: np.ndarray
    depths_P: np.ndarray
    is_right_P: np.ndarray
    among_P: np.ndarray
    """Where the right token is among the mask's own candidates: an index of AMONG."""
    ranks_P: np.ndarray
    """Of the right token, after the sequential head."""
    sure_P: np.ndarray
    """The teacher's probability of the right token."""

    @classmethod
    def joined(cls, parts: "list[Checked]") -> "Checked":
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def only(self, kept_P: np.ndarray) -> "Checked":
        return Checked(*(getattr(self, each.name)[kept_P] for each in fields(self)))


class Inspector:
    """A reader that drafts in every one of WAYS, and keeps how drafts came about in the first."""

    forms: tuple[Form, ...] = (None,) * len(WAYS)

    def __init__(self, checkpoint: Checkpoint, reader: MaskReader) -> None:
        self.network, self.reader = checkpoint.network, reader
        self.drafts, self.device = reader.drafts, reader.device
        self.head = OutputHead(checkpoint.network)
        self.parts: list[Checked] = []
        self._texts = 0

    def __call__(self, ids_BT: torch.Tensor, noise: Noise | None = None) -> Judge:
        outputs_of, sure_BT = self.reader.read(ids_BT), self._sure(ids_BT)
        first, self._texts = self._texts, self._texts + len(ids_BT)

        def judge(anchors_BF: torch.Tensor) -> torch.Tensor:
            outputs_BFKC, hits = outputs_of(anchors_BF), []
            for way in range(len(WAYS)):
                chains = Chains.off(ids_BT, anchors_BF[:, way], outputs_BFKC[:, way], None)
                among_BK = self._among(chains)
                if way == 0:
                    self.parts.append(self._checked(chains, among_BK, sure_BT, first))
                    hits.append(torch.from_numpy(self.parts[-1].is_right_P).to(self.device).view_as(among_BK))
                elif way < _LISTED:
                    hits.append(among_BK < way)
                else:
                    is_listed_BK = chains.right_XD < SHORTLISTS[way - _LISTED]
                    hits.append((self._ranks(chains) == 1) & is_listed_BK)
            return torch.stack(hits, dim=1)

        return judge

    def _sure(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """The teacher's probability of every token, given those before it; of the first it has none."""
        _, hidden_NC = read_texts(self.network, ids_BT)
        next_N, found = ids_BT.roll(-1, dims=1).flatten(), []
        for part in self.head.chunks(hidden_NC):
            logits = self.head(part)
            chosen = logits.gather(1, next_N[: len(part), None])[:, 0]
            found.append((chosen - logits.logsumexp(dim=-1)).exp())
            next_N = next_N[len(part) :]
        return torch.cat(found).view_as(ids_BT).roll(1, dims=1)

    def _among(self, chains: Chains) -> torch.Tensor:
        tokens = self.reader.scorer.candidates(chains.outputs_XDC.flatten(0, 1), DRAFT_CANDIDATES)
        is_right = tokens.unflatten(0, chains.right_XD.shape) == chains.right_XD[..., None]
        return 2 - is_right[..., :GREEDY_CANDIDATES].any(dim=-1).long() - is_right.any(dim=-1).long()

    def _ranks(self, chains: Chains) -> torch.Tensor:
        """Of the right tokens, after the sequential head has read the ones before them."""
        scorer = self.reader.scorer
        moved = scorer.along(chains.outputs_XDC, chains.before_XD).flatten(0, 1)
        return scorer.ranks(moved, chains.right_XD.flatten()).view_as(chains.right_XD)

    def _checked(self, chains: Chains, among_BK: torch.Tensor, sure_BT: torch.Tensor, first: int) -> Checked:
        right_BK, ranks_BK = chains.right_XD, self._ranks(chains)
        depths_BK = torch.arange(1, right_BK.shape[1] + 1, device=self.device).expand_as(right_BK)
        rows_BK = torch.arange(first, first + len(right_BK), device=self.device)[:, None].expand_as(right_BK)
        sure_BK = sure_BT.gather(1, chains.positions_XD)
        columns = (rows_BK, chains.positions_XD, depths_BK, ranks_BK == 1, among_BK, ranks_BK, sure_BK)
        return Checked(*(column.flatten().cpu().numpy() for column in columns))


def reached(checked: Checked, lengths_B: np.ndarray, drafts: int) -> Checked:
    """Without drafts behind a wrong one, and without those for an answer's last token, which is drawn."""
    right_CK = checked.is_right_P.reshape(-1, drafts)
    follows_CK = np.cumprod(np.pad(right_CK[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1)
    is_inside_P = checked.positions_P < lengths_B[checked.rows_P] - 1
    return checked.only(follows_CK.astype(bool).flatten() & is_inside_P)


def kinds_of(checkpoint: Checkpoint, tokens_N: np.ndarray) -> np.ndarray:
    """The kind of every token of a text: an index of KINDS. Letters behind letters or digits continue a word."""
    tokenizer = checkpoint.tokenizer
    special = {*tokenizer.all_special_ids, *checkpoint.eos_ids}
    found, places_N = np.unique(tokens_N, return_inverse=True)
    words = [str(tokenizer.decode([token])) for token in found.tolist()]
    # A tokenizer may drop the space in front of what it decodes.
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(found.tolist())]
    kinds = np.array([_SPECIAL if token in special else _kind(word) for token, word in zip(found, words, strict=True)])
    is_apart = [word[:1].isspace() or piece[:1] in "\u0120\u2581" for word, piece in zip(words, pieces, strict=True)]
    goes_on = np.array([word[-1:].isalnum() for word in words]) & (kinds != _SPECIAL)
    follows_N = np.concatenate([[False], goes_on[places_N][:-1]])
    kinds_N = kinds[places_N]
    kinds_N[(kinds_N == _START) & follows_N & ~np.array(is_apart)[places_N]] = _CONTINUATION
    return kinds_N


def _kind(word: str) -> int:
    first = word.strip()[:1]
    if not first:
        return _SPACE
    return _NUMBER if first.isdigit() else _START if first.isalpha() else _SIGN


def occurred(tokens_N: np.ndarray) -> np.ndarray:
    """Whether each token of a text occurred in the last `_NEAR` tokens before it."""
    order_N = np.argsort(tokens_N, kind="stable")
    is_same = tokens_N[order_N][1:] == tokens_N[order_N][:-1]
    found_N = np.zeros(len(tokens_N), dtype=bool)
    found_N[order_N[1:]] = is_same & (np.diff(order_N) <= _NEAR)
    return found_N


def columns_of(checkpoint: Checkpoint, texts: list[Text], checked: Checked) -> dict[str, tuple[np.ndarray, list[str]]]:
    """What drafts are told apart by: name -> the value of every draft, as an index of these values."""
    starts_B = np.cumsum([0, *(len(text.tokens) for text in texts)])[:-1]
    places_P = starts_B[checked.rows_P] + checked.positions_P
    kinds_N = np.concatenate([kinds_of(checkpoint, text.tokens) for text in texts])
    occurred_N = np.concatenate([occurred(text.tokens) for text in texts])
    categories = list(dict.fromkeys(str(text.category) for text in texts))
    categories_B = np.array([categories.index(str(text.category)) for text in texts])
    deepest = int(checked.depths_P.max(initial=0))
    return {
        "depth": (checked.depths_P - 1, [str(depth + 1) for depth in range(deepest)]),
        "category": (categories_B[checked.rows_P], categories),
        "right token": (kinds_N[places_P], list(KINDS)),
        f"occurred in the last {_NEAR} tokens": (occurred_N[places_P].astype(int), ["no", "yes"]),
        "teacher's probability": (np.digitize(checked.sure_P, _SURE), list(SURE)),
        "among the mask's own": (checked.among_P, list(AMONG)),
        "rank after the head": (np.digitize(checked.ranks_P, _RANKS), list(RANKS)),
    }


def failures_by(values_P: np.ndarray, names: list[str], is_right_P: np.ndarray) -> dict[str, dict[str, float]]:
    counts = np.bincount(values_P, minlength=len(names))
    wrong = np.bincount(values_P[~is_right_P], minlength=len(names))
    return {
        name: {
            "drafts": int(count),
            "failures": int(failed),
            "failure_rate": round(failed / max(count, 1), 4),
            "share_of_failures": round(failed / max(wrong.sum(), 1), 4),
        }
        for name, count, failed in zip(names, counts, wrong, strict=True)
    }


def failures_table(report: dict[str, Any]) -> str:
    rows = [
        [name, value, f"{entry['drafts']:,}", f"{entry['failure_rate']:.3f}", f"{entry['share_of_failures']:.3f}"]
        for name, values in report["failures"].items()
        for value, entry in values.items()
    ]
    shown = table(["", "", "drafts", "failure rate", "share of failures"], rows)
    gains = [
        [way, f"{entry['tokens_per_forward']:.3f}", f"{entry.get('mean_over_categories', 0):.3f}"]
        for way, entry in report["tokens_per_forward"].items()
    ]
    return f"{shown}\n\n{table(['chosen', 'tokens per forward', 'mean over categories'], gains)}"


def inspect(checkpoint: Checkpoint, reader: MaskReader, texts: list[Text]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and columns with an entry per draft that was checked."""
    inspector = Inspector(checkpoint, reader)
    measured: list[tuple[Text, tuple[Tally, ...]]] = list(Measure(inspector).by_form(texts))
    ordered = [text for text, _ in measured]
    lengths_B = np.array([len(text.tokens) for text in ordered])
    checked = reached(Checked.joined(inspector.parts), lengths_B, inspector.drafts)
    columns = columns_of(checkpoint, ordered, checked)
    report = {
        "drafts": len(checked.rows_P),
        "failures": {name: failures_by(*column, checked.is_right_P) for name, column in columns.items()},
        "tokens_per_forward": {
            way: Summary.of((text, tallies[place]) for text, tallies in measured).entry
            for place, way in enumerate(WAYS)
        },
    }
    return report, {name: values for name, (values, _) in columns.items()} | {"right": checked.is_right_P}


def main() -> None:
    parser = script_parser(__doc__, needs_json=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapter", type=Path, help="default: the model's own")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, help="the first so many prompts")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024 if torch.cuda.is_available() else 64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--positions", type=Path, help="an .npz file for the columns: an entry per draft")
    options = parser.parse_args()
    checkpoint = load_checkpoint(
        options.model, LoadSettings(device=options.device, dtype=options.dtype), trainable=True
    )
    folders = {} if options.adapter is None else {options.adapter.name: options.adapter}
    ((name, student),) = load_students(checkpoint, folders).items()
    lines = read_prompts(options.prompts)[: options.count]
    answers = greedy_answers(checkpoint, lines, options.max_tokens, options.batch, lambda what, done, of: None)
    texts = [answers[number] for number in range(len(lines))]
    report, columns = inspect(checkpoint, MaskReader(checkpoint.network, student), texts)
    asked = {"model": options.model, "adapter": name, "prompts": options.prompts.name, "max_tokens": options.max_tokens}
    write(options.json, asked | report)
    if options.positions is not None:
        np.savez_compressed(options.positions, **columns)
    print(failures_table(report))


if __name__ == "__main__":
    main()
