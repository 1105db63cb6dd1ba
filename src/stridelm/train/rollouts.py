"""Rollouts on disk: the prompts and the teacher's own answers, with a manifest that says what they were made from.

    manifest.json        the base model, settings and prompts that the rollouts were made with
    made-up.jsonl        the prompts that the model has made up so far
    prompts.jsonl        all prompts, written once they are complete
    answers-00000.safetensors, ...   answers in the order of completion, by number: prompt x answers per prompt + index

A run that was killed continues from these files; another run with the same settings reuses them.
"""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.files import read_json, read_json_lines, write_json, write_json_lines
from stridelm.models.encode import Prompt, encode_prompt
from stridelm.params import InputError
from stridelm.prompts import PromptLine, read_prompts
from stridelm.train.files import read_tensors, write_tensors
from stridelm.train.near_duplicates import Sieve
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.self_prompts import made_up, opening, sift
from stridelm.train.settings import ROLLOUT_FIELDS, TrainSettings, differences

DEFAULT_SELF_PROMPTS = 4096
MANIFEST = "manifest.json"
_PART = 512
"""Answers per file: a killed run loses at most this many, or one round of made-up prompts."""
_MIN_ANSWER = 4
_SELF_SEED = 2**40
"""Seeds of made-up prompts start here, so that they differ from the seeds of answers."""

Report = Callable[[str, int, int], None]
"""Shows progress: (activity, number done, total number)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer. The other fields are for measurements."""

    tokens: np.ndarray
    prompt_length: int
    temperature: float = 0.0
    """How the answer was drawn; 0 is greedy."""
    seed: int = 0
    category: str | None = None
    """What kind of prompt it is."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The texts that a conversion is trained and evaluated on."""

    train: list[Text]
    held_out: list[Text]
    """Greedy answers to prompts that are not trained on."""
    manifest: dict[str, object]


class RolloutStore:
    """The rollouts of one folder."""

    def __init__(
        self, folder: Path, checkpoint: Checkpoint, lines: list[PromptLine], settings: TrainSettings, report: Report
    ) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.settings = settings
        self.report = report
        answered = [line.with_answer() for line in lines] if settings.learns.needs_answers else []
        self.given_answers = [answer for _, answer in answered]
        """Answers from the prompts file, to be learnt instead of the model's own."""
        if settings.learns.needs_answers:
            lines = [replace(line, prompt=prompt) for line, (prompt, _) in zip(lines, answered, strict=True)]
            if not lines:
                raise InputError(f"--objective {settings.objective} learns given answers: give a file with --prompts")
        self.given = [_checked(checkpoint, line) for line in lines]
        wanted = settings.self_prompts
        self.self_prompts = (0 if lines else DEFAULT_SELF_PROMPTS) if wanted is None else wanted
        if len(self.given) + self.self_prompts < 2:
            raise InputError(
                "fewer than two prompts: some are trained on, some are held out to measure on. Give more with "
                "--prompts, or let the model make some up with --self-prompts"
            )

    def manifest(self) -> dict[str, object]:
        learnt = [self.given, self.given_answers] if self.given_answers else self.given
        digest = hashlib.sha256(json.dumps(learnt).encode()).hexdigest()
        settings = {name: value for name, value in asdict(self.settings).items() if name in ROLLOUT_FIELDS}
        given: dict[str, object] = {"objective": self.settings.objective} if self.given_answers else {}
        return given | {
            "base": self.checkpoint.name,
            "fingerprint": self.checkpoint.fingerprint,
            "prompts_given": len(self.given),
            "prompts_sha256": digest,
            "settings": settings | {"self_prompts": self.self_prompts},
        }

    def check(self) -> None:
        """Refuse a folder that holds other rollouts; nothing is written."""
        file = self.folder / MANIFEST
        if not file.is_file():
            return
        manifest = self.manifest()
        del manifest["base"]  # the same weights may have another name
        apart = differences(read_json(file, "name another folder with --rollouts"), manifest)
        if apart:
            raise InputError(
                f"{self.folder}: holds rollouts of other settings: {', '.join(apart)}. Give the same, or name another "
                "folder with --rollouts"
            )

    def make(self) -> Rollouts:
        """Read the rollouts that are on disk, and make those that are missing."""
        self.check()
        manifest = self.manifest()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / MANIFEST).is_file():
            write_json(self.folder / MANIFEST, manifest)
        prompts = self._prompts()
        encoded = [_encode(self.checkpoint, prompt) for prompt in prompts]
        if all(len(tokens) + _MIN_ANSWER > self.settings.length for tokens in encoded):
            raise InputError(
                f"no prompt leaves room for an answer in a text of --length ({self.settings.length}): the shortest has "
                f"{min(map(len, encoded))} tokens. Give a greater --length"
            )
        held_out = min(self.settings.held_out, max(1, len(prompts) // 5))
        order = list(range(len(prompts)))
        random.Random(self.settings.seed).shuffle(order)
        held = set(order[:held_out])
        answers = self._read_given(encoded, held) if self.given_answers else {}
        answers |= self._answers(self._rollout_prompts(encoded, held))
        per_prompt = self.settings.answers
        train: list[Text] = []
        measured: list[Text] = []
        for number, answer in sorted(answers.items()):
            prompt = encoded[number // per_prompt]
            text = Text(np.array([*prompt, *answer], dtype=np.int32), len(prompt))
            (measured if number // per_prompt in held else train).append(text)
        tokens = sum(len(answer) for answer in answers.values())
        manifest |= {"prompts": len(prompts), "answers": len(answers), "answer_tokens": tokens}
        return Rollouts(train, measured, manifest)

    def _prompts(self) -> list[Prompt]:
        file = self.folder / "prompts.jsonl"
        if file.is_file():
            return [line.prompt for line in read_prompts(file)]
        prompts: list[Prompt] = [*self.given, *self._make_up()]
        write_json_lines(file, [_as_line(prompt) for prompt in prompts])
        return prompts

    def _make_up(self) -> list[str]:
        """Let the model make up prompts in rounds until there are enough. Each round is written to disk at once."""
        if not self.self_prompts:
            return []
        file = self.folder / "made-up.jsonl"
        rounds = read_json_lines(file, "delete it: it is made again") if file.is_file() else []
        sieve, texts = Sieve(), []
        for earlier in rounds:
            texts += sift(iter(earlier["texts"]), sieve)
        tokenizer, batch = self.checkpoint.tokenizer, self.settings.rollout_batch
        start = len(opening(tokenizer))
        longest = min(self.settings.prompt_tokens, self.checkpoint.context_length - start)
        engine = self._engine(start + longest)
        while len(texts) < self.self_prompts:
            # A third more than needed, since some are near-duplicates or cut off. A killed run loses one round.
            size = max(batch, min(8 * batch, (self.self_prompts - len(texts)) * 4 // 3))
            self.report("making up prompts", len(texts), self.self_prompts)
            first = _SELF_SEED + self.settings.seed * 2**32 + sum(earlier["seeds"] for earlier in rounds)
            found = made_up(tokenizer, engine, range(first, first + size), longest, self.settings.openings)
            fresh = sift(filter(self._can_be_answered, found), sieve)
            texts += fresh
            rounds.append({"seeds": size, "texts": fresh})
            write_json_lines(file, rounds)
            if len(rounds) > 3 and not any(each["texts"] for each in rounds[-3:]):
                raise InputError(
                    f"the model made up {len(texts)} prompts and then no new ones: ask for fewer with --self-prompts, "
                    "or give some with --prompts"
                )
        return texts[: self.self_prompts]

    def _can_be_answered(self, prompt: str) -> bool:
        try:
            return bool(_encode(self.checkpoint, prompt))
        except InputError:
            return False

    def _read_given(self, encoded: list[tuple[int, ...]], held: set[int]) -> dict[int, list[int]]:
        """Number -> answer from the prompts file, each with an end-of-text token."""
        tokenizer, answers = self.checkpoint.tokenizer, {}
        end = tokenizer.eos_token_id
        if not isinstance(end, int):
            raise InputError(
                f"{self.checkpoint.name}: its tokenizer names no end-of-text token, so given answers would have no "
                "end: name one in tokenizer_config.json (eos_token)"
            )
        for index, (prompt, answer) in enumerate(zip(encoded, self.given_answers, strict=True)):
            tokens: list[int] = tokenizer.encode(answer, add_special_tokens=False)
            answers[index] = [*tokens, end][: self.checkpoint.context_length - len(prompt)]
        return {index: answer for index, answer in answers.items() if index not in held or self._measures_given}

    @property
    def _measures_given(self) -> bool:
        """Whether held-out prompts keep the file's answers, too: without masks, only the loss on these is measured."""
        return not self.settings.learns.proposes

    def _rollout_prompts(self, encoded: list[tuple[int, ...]], held: set[int]) -> dict[int, RolloutPrompt]:
        settings, wanted = self.settings, {}
        if self._measures_given:
            return wanted
        for index, tokens in enumerate(encoded):
            if self.given_answers and index not in held:
                continue
            chance = random.Random(settings.seed * 2**32 + index)
            longest = min(settings.answer_tokens, self.checkpoint.context_length - len(tokens))
            for which in range(1 if index in held else settings.answers):
                is_greedy = index in held or (chance.random() < settings.greedy_share and which == 0)
                number = index * settings.answers + which
                wanted[number] = RolloutPrompt(
                    tokens, longest, 0.0 if is_greedy else settings.temperature, seed=settings.seed * 2**32 + number
                )
        return wanted

    def _answers(self, wanted: dict[int, RolloutPrompt]) -> dict[int, list[int]]:
        """Number -> answer. Answers that are already on disk are not generated again."""
        answers: dict[int, list[int]] = {}
        files = sorted(self.folder.glob("answers-*.safetensors"))
        for file in files:
            answers |= _unpack(file, wanted)
        next_file = int(files[-1].stem.removeprefix("answers-")) + 1 if files else 0
        missing = {number: prompt for number, prompt in wanted.items() if number not in answers}
        if not missing:
            return answers
        # Long prompts first, so that only short ones are left at the end.
        numbers = sorted(missing, key=lambda number: -len(missing[number].tokens))
        engine = self._engine(max(len(prompt.tokens) + prompt.max_tokens for prompt in missing.values()))
        part: dict[int, list[int]] = {}
        for place, answer in engine.run(missing[number] for number in numbers):
            part[numbers[place]] = answer
            if len(part) == _PART or len(answers) + len(part) == len(wanted):
                write_tensors(self.folder / f"answers-{next_file:05}.safetensors", _pack(part))
                next_file += 1
                answers |= part
                part = {}
            self.report("writing answers", len(answers) + len(part), len(wanted))
        return answers

    def _engine(self, width: int) -> RolloutEngine:
        return RolloutEngine(self.checkpoint, self.settings.rollout_batch, min(width, self.checkpoint.context_length))


def _as_line(prompt: Prompt) -> dict[str, Prompt]:
    """An entry of prompts.jsonl, in the format of `read_prompts`."""
    return {"prompt" if isinstance(prompt, str) else "messages": prompt}


def _checked(checkpoint: Checkpoint, line: PromptLine) -> Prompt:
    """The line's prompt; refuses one that the model cannot answer."""
    try:
        _encode(checkpoint, line.prompt)
    except InputError as error:
        raise InputError(f"{line.place}: {error}") from error
    return line.prompt


def _encode(checkpoint: Checkpoint, prompt: Prompt) -> tuple[int, ...]:
    tokens = encode_prompt(checkpoint, prompt)
    if len(tokens) + _MIN_ANSWER > checkpoint.context_length:
        raise InputError(
            f"the prompt has {len(tokens)} tokens, which leaves no room for an answer in a context of "
            f"{checkpoint.context_length}: shorten it"
        )
    return tuple(tokens)


def _pack(answers: dict[int, list[int]]) -> dict[str, torch.Tensor]:
    return {
        "numbers": torch.tensor(list(answers), dtype=torch.int32),
        "lengths": torch.tensor([len(answer) for answer in answers.values()], dtype=torch.int32),
        "tokens": torch.tensor([token for answer in answers.values() for token in answer], dtype=torch.int32),
    }


def _unpack(file: Path, wanted: dict[int, RolloutPrompt]) -> dict[int, list[int]]:
    remedy = "delete it: its answers are written again"
    tensors = read_tensors(file, remedy)
    try:
        parts = tensors["tokens"].split(tensors["lengths"].tolist())
        answers = dict(zip(tensors["numbers"].tolist(), (part.tolist() for part in parts), strict=True))
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{file}: does not hold answers ({error}): {remedy}") from error
    if not answers.keys() <= wanted.keys():
        raise InputError(f"{file}: answers prompts that are not in prompts.jsonl: {remedy}")
    return answers
