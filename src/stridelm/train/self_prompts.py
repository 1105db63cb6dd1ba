"""Prompts that the model makes up: it is shown the opening of a user's turn and continues it at temperature 1."""

import random
from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from stridelm.params import InputError
from stridelm.train.near_duplicates import Sieve
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt

_PLACE = "\x00here\x00"
_MIN_WORDS = 3
_MIN_TEXT_TOKENS = 8
"""Minimum tokens of a prompt if the model has no chat template: then prompts are beginnings of plain texts."""


def opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens before a user's message in the chat template. If there are none, or there is no template, the token
    that begins any text."""
    if tokenizer.chat_template:
        whole = tokenizer.apply_chat_template([{"role": "user", "content": _PLACE}], tokenize=False)
        before, found, _ = str(whole).partition(_PLACE)
        if not found:
            raise InputError("the model's chat template changes what the user says: give it prompts with --prompts")
        if before:
            return tokenizer.encode(before, add_special_tokens=False)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if first is None:
        raise InputError(
            "the model has nothing that begins a user's turn or a text, so it cannot make up prompts: give it some "
            "with --prompts"
        )
    return [int(first)]  # type: ignore[arg-type]


def made_up(
    tokenizer: PreTrainedTokenizerBase, engine: RolloutEngine, seeds: range, prompt_tokens: int
) -> Iterator[str]:
    """One candidate per seed, in the order of the seeds; those that were cut off or are too short are left out."""
    start = opening(tokenizer)
    prompts = [RolloutPrompt(tuple(start), prompt_tokens, temperature=1.0, seed=seed) for seed in seeds]
    answers = dict(engine.run(prompts))
    for place, seed in enumerate(seeds):
        tokens = answers[place]
        if tokenizer.chat_template:
            if tokens[-1] not in engine.eos_ids:
                continue
        else:
            # A plain text need not end: its beginning, of random length, is the prompt.
            tokens = tokens[: random.Random(seed).randint(min(_MIN_TEXT_TOKENS, prompt_tokens), prompt_tokens)]
        text = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
        if len(text.split()) >= _MIN_WORDS and "\ufffd" not in text:
            yield text


def sift(candidates: Iterator[str], sieve: Sieve) -> list[str]:
    """The candidates without near-duplicates of earlier ones."""
    return [text for text in candidates if sieve.admit(text)]
