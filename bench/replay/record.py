"""Records traces: greedy answers of the built-in model on the native backend, and what masks would have drafted.

    python bench/replay/record.py FILE.npz [--count 64] [--tokens 128] [--temperature 0.7 --seed 0] [--threads 2]
                                  [--made-up 120]

Two minutes of two cores. The prompts are of eight kinds; `--count` takes as many of each kind as come first when the
kinds take turns. With `--made-up` the model makes up its prompts, half of them begun with a few words of ours: what
priors are learned from, so that no prompt that is measured with is among them. See bench/replay/trace.py for what is
kept.

Shape letters as there.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from stridelm import LanguageModel, LoadSettings, SamplingParams
from stridelm import load as load_model
from stridelm.bench.suites.table import questions
from stridelm.contracts import Gate
from stridelm.decode.autoregressive import Autoregressive
from stridelm.draft.grow import Chain
from stridelm.draft.mask import MaskDrafter
from stridelm.layout import lay_out, make_block
from stridelm.prompts import read_prompts
from stridelm.settings import PLAIN
from stridelm.train.self_prompts import begun
from stridelm.types import ROOT, DraftTree, Sequence

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import KINDS, MATHS, PROMPTS
from bench.replay.trace import LONGEST, PLACE_N, USED_N, Trace, save, stored

ANCHORS = 16
"""Tokens of a forward, with a chain of masks off each."""
PER_SUITE, PER_SET = 8, 12
_LONGEST_PROMPT, _MIN_WORDS = 128, 4


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: str
    name: str
    asked: Any
    """Text or messages."""


def prompts() -> list[Prompt]:
    """Kinds in turn, so that the first few hold some of each."""
    cpu = [line for line in read_prompts(PROMPTS / "cpu.jsonl") if line.category != "maths"]  # those are in MATHS
    texts = {str(line.prompt) for line in cpu}
    kinds = [line for line in read_prompts(KINDS) if str(line.prompt) not in texts]
    by_kind: dict[str, list[Any]] = {"maths": [line.prompt for line in read_prompts(MATHS)[:PER_SET]]}
    for line in cpu:
        by_kind.setdefault(str(line.category), []).append(line.prompt)
    for suite in ("structured", "voice", "gemma"):
        by_kind[suite] = [list(each.messages) for each in questions(suite, PER_SUITE)]
    first_of = {line.category: line.prompt for line in reversed(kinds)}
    by_kind["twelve kinds"] = list(first_of.values())[:PER_SET]
    named = [[Prompt(kind, f"{kind}-{number}", each) for number, each in enumerate(by)] for kind, by in by_kind.items()]
    return [each for turn in itertools.zip_longest(*named) for each in turn if each is not None]


def made_up(model: LanguageModel, count: int) -> list[Prompt]:
    """Prompts that the model makes up itself, shown the opening of a user's turn."""
    one, other = (model.encode([{"role": "user", "content": word}]) for word in ("One", "other"))
    opening = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
    found: list[Prompt] = []
    for seed in itertools.count():
        first = begun(random.Random(seed)) if seed % 2 else ""
        params = SamplingParams(max_tokens=_LONGEST_PROMPT, temperature=1.0, seed=seed)
        result = model.generate([*opening, *(model.encode(first, raw=True) if first else ())], params, decoder=PLAIN)
        text = f"{first}{result.text}".strip()
        if result.finish_reason == "stop" and len(result.text.split()) >= _MIN_WORDS:
            found.append(Prompt("begun by us" if first else "made up", f"made up, seed {seed}", text))
        if len(found) == count:
            return found
    raise AssertionError


class _FirstChoices(MaskDrafter):
    """Two children per node, of which only the likelier gets children. Nodes come in pairs, level by level."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate, branches=2)

    def _at_once(self, sequence: Sequence, chain: Chain, depth: int, floor: float) -> None:
        """The backend keeps the two likeliest nodes of a depth instead."""

    def _likeliest_buds(self, buds: list[Any]) -> list[Any]:
        return [bud for bud in buds if bud.node % 2 == 0]


class Recorder:
    def __init__(self, model: LanguageModel, params: SamplingParams) -> None:
        self.model, self.params = model, params
        self.forward = model.loaded.forward.with_cache(2048)
        assert self.forward.gate is not None and self.forward.gate.k == LONGEST + 1 and not self.forward.gate.tail
        self.drafter = _FirstChoices(self.forward.gate)

    def record(self, prompt: Prompt) -> Trace:
        model = self.model
        read = model.encode(prompt.asked)
        result = model.generate(read, self.params, decoder=PLAIN)
        tokens = [*read, *result.token_ids]
        sure = [each for stride in result.strides for each in stride.confidence]
        columns = map(np.concatenate, zip(*self._parts(tokens, len(read)), strict=True))
        return Trace(prompt.kind, prompt.name, len(read), np.array(tokens, np.uint16), stored(np.array(sure)), *columns)

    def _parts(self, tokens: list[int], prompt: int) -> Iterator[tuple[np.ndarray, ...]]:
        """A few anchors per forward, each with the longest chain."""
        cache = self.forward.cache
        table = cache.open(len(tokens) + ANCHORS * (LONGEST + 1))
        try:
            if prompt > 1:
                block = make_block(0, tokens[: prompt - 1], reads_logits=False)
                self.forward(lay_out([block]), [table])
                cache.keep(table, range(prompt - 1))
            for first in range(prompt - 1, len(tokens) - 1, ANCHORS):
                own = tokens[first : min(first + ANCHORS, len(tokens) - 1)]
                tree = DraftTree.chain(own[1:], "text")
                block = make_block(first, own[:1], tree, anchors=range(ROOT, len(tree)), masks=LONGEST)
                output = self.forward(lay_out([block]), [table])[0]
                assert output.hidden_WC is not None
                cache.keep(table, range(len(own)))
                places = map(block.mask_outputs, block.mask_anchors)
                yield self._drafted(tokens, first, [(output.logits_WV[at], output.hidden_WC[at]) for at in places])
        finally:
            cache.free(table)

    def _drafted(
        self, tokens: list[int], first: int, outputs: list[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, ...]:
        """First and second choices of every node, for these anchors."""
        where: list[tuple[int, int]] = []
        sequences: list[Sequence] = []
        chains: list[Chain] = []
        for number, (logits_DV, hidden_DC) in enumerate(outputs):
            before = Chain(logits_DV, hidden_DC, top=self.drafter.gate.top)
            for used in range(min(LONGEST, len(tokens) - 1 - first - number)):
                newest = first + number + 1 + used
                if used:  # read the token at the place that the text has passed
                    self.drafter.advance(before, tokens[newest - 1 : newest + 1])
                chains.append(Chain(logits_DV, hidden_DC, before.used, before.state_1S, before.candidates, before.top))
                sequences.append(self._sequence(tokens[: newest + 1]))
                where.append((number, used))
        trees = self.drafter.draft(sequences, chains, depth=LONGEST, floor=0.0)
        shape = (len(outputs), len(USED_N))
        found = [np.zeros(shape, kind) for kind in (np.uint16, np.uint8) * 2]
        for (number, used), tree in zip(where, trees, strict=True):
            nodes = np.flatnonzero((used == USED_N) & (used + len(tree) // 2 > PLACE_N))
            for choice in range(2):
                found[2 * choice][number, nodes] = tree.tokens[choice::2]
                found[2 * choice + 1][number, nodes] = stored(np.array(tree.scores[choice::2]))
        return tuple(found)

    def _sequence(self, tokens: list[int]) -> Sequence:
        target = self.model.target
        return Sequence(tokens, self.params, Autoregressive(), target.eos_ids, target.context_length)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, help="of all prompts, the first so many")
    parser.add_argument("--made-up", type=int, metavar="N", help="ask N prompts that the model makes up instead")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per answer, at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature, seed=options.seed)
    model = load_model("smollm2", settings=LoadSettings(backend="native", threads=options.threads))
    recorder = Recorder(model, params)
    asked = prompts() if options.made_up is None else made_up(model, options.made_up)
    save(options.file, [recorder.record(each) for each in track(asked[: options.count], "Recording")])


if __name__ == "__main__":
    main()
