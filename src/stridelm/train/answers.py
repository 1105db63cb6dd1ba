"""A model's own answers to the prompts of a file, for measurements, and where they begin to repeat themselves."""

import numpy as np

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.models.encode import Prompt, encode_prompt
from stridelm.params import InputError
from stridelm.prompts import PromptLine
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.rollouts import Report, Text

MAX_PERIOD = 64
"""Tokens of the longest thing that a loop repeats."""
LOOP_TIMES = 3
_SEEDS_APART = 2**32
"""Each prompt has a seed of its own, those of different seeds of a measurement included."""


def greedy_answers(
    checkpoint: Checkpoint, lines: list[PromptLine], max_tokens: int, batch: int, report: Report
) -> dict[int, Text]:
    """Prompt number -> its text. `batch` answers are generated at once."""
    return answered(checkpoint, rollout_prompts(checkpoint, lines, max_tokens), lines, batch, report)


def rollout_prompts(
    checkpoint: Checkpoint, lines: list[PromptLine], max_tokens: int, *, temperature: float = 0.0, seed: int = 0
) -> list[RolloutPrompt]:
    """The prompts, encoded. At a temperature, prompt number n is answered with the seed `seed` x 2**32 + n."""
    prompts: list[RolloutPrompt] = []
    for number, line in enumerate(lines):
        tokens = _encode(checkpoint, line.place, line.prompt)
        longest = min(max_tokens, checkpoint.context_length - len(tokens))
        own_seed = seed * _SEEDS_APART + number if temperature else 0
        prompts.append(RolloutPrompt(tuple(tokens), longest, temperature, own_seed))
    return prompts


def _encode(checkpoint: Checkpoint, place: str, prompt: Prompt) -> list[int]:
    try:
        return encode_prompt(checkpoint, prompt)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def answered(
    checkpoint: Checkpoint, prompts: list[RolloutPrompt], lines: list[PromptLine], batch: int, report: Report
) -> dict[int, Text]:
    """Prompt number -> its text. `lines`: where each prompt is from."""
    # Prompts of similar length run together: one long prompt would widen the cache of all others in its batch.
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].tokens))
    texts: dict[int, Text] = {}
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        width = max(len(prompts[number].tokens) + prompts[number].max_tokens for number in part)
        engine = RolloutEngine(checkpoint, len(part), width)
        for place, answer in engine.run(prompts[number] for number in part):
            number = part[place]
            prompt = prompts[number]
            tokens = np.array([*prompt.tokens, *answer], dtype=np.int32)
            category = lines[number].category
            texts[number] = Text(tokens, len(prompt.tokens), prompt.temperature, prompt.seed, category)
            report("answering", len(texts), len(prompts))
    return texts


def loop_start(tokens: np.ndarray) -> int:
    """The first place from which the rest of an answer repeats a period of at most `MAX_PERIOD` tokens to its end, at
    least three times; the last time may be cut off behind these. The answer's length if it ends in no loop."""
    length = len(tokens)
    first = length
    for period in range(1, min(MAX_PERIOD, length // LOOP_TIMES) + 1):
        # Place n repeats what is a period later; a loop begins behind the last place that does not.
        apart = np.flatnonzero(tokens[:-period] != tokens[period:])
        start = int(apart[-1]) + 1 if len(apart) else 0
        if length - start >= LOOP_TIMES * period:
            first = min(first, start)
    return first
