"""Prompts that the model makes up: it is shown the opening of a user's turn and continues it at temperature 1.

Left to itself, a chat model seldom makes up word problems, tables or texts to be read. So a share of its prompts begins
with a few words of ours, which it continues: the beginning of a word problem, or of a request.
"""

import random
from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from stridelm.params import InputError
from stridelm.train.near_duplicates import Sieve
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt

_PLACE = "\x00here\x00"
_MIN_WORDS = 3
"""Minimum words of a prompt, besides ours."""
_MIN_TEXT_TOKENS = 8
"""Minimum tokens of a prompt if the model has no chat template: then prompts are beginnings of plain texts."""

_PEOPLE = (
    "Tom", "Maria", "Ali", "Sarah", "Kenji", "Olga", "Peter", "Amina", "Jack", "Lily", "Diego", "Emma", "Sam", "Priya",
    "A farmer", "A teacher", "A baker", "A shop", "A school", "A family", "A library", "A factory", "A train", "A team",
)  # fmt: skip
_DOES = (
    "has", "buys", "sells", "makes", "needs", "reads", "collects", "earns $", "spends $", "saves $", "walks", "drives",
    "picks", "plants", "works", "uses", "gives away", "finds", "orders", "packs",
)  # fmt: skip
_REQUESTS = (
    "How many", "How much", "How do I", "How does", "Why do", "Why is", "What is the difference between", "What are",
    "Who was", "When did", "Is it true that", "Can you explain", "Explain", "Describe", "Compare", "List", "Give me",
    "Write a short story about", "Write a poem about", "Write an email to", "Write an essay on", "Write a speech for",
    "Write a Python function that", "Write a program that", "Write a SQL query that", "What does this code do?",
    "Translate", "Rewrite", "Correct the", "Summarize", "Summarize the following text:", "Read the following passage",
    "Answer the question based on the text:", "Extract", "Classify", "Here is a table of", "From the following list",
    "Imagine you are", "Pretend to be", "Act as", "Let's play a game", "Solve", "Calculate", "If it takes", "Suppose",
    "A puzzle:", "Plan a", "I need advice on", "My friend", "Continue the story:",
)  # fmt: skip


def begun(chance: random.Random) -> str:
    """A few words that a prompt may begin with: half of the time of a word problem."""
    if chance.random() < 0.5:
        return chance.choice(_REQUESTS)
    number = chance.randint(2, chance.choice((20, 100, 600)))
    does = chance.choice(_DOES)
    return f"{chance.choice(_PEOPLE)} {does}{'' if does.endswith('$') else ' '}{number}"


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
    tokenizer: PreTrainedTokenizerBase, engine: RolloutEngine, seeds: range, prompt_tokens: int, openings: float
) -> Iterator[str]:
    """One candidate per seed, in the order of the seeds; those that were cut off or are too short are left out.
    `openings`: the share of candidates that begin with words of ours."""
    start = opening(tokenizer)
    firsts = [_first_words(tokenizer, seed, prompt_tokens, openings) for seed in seeds]
    prompts = [
        RolloutPrompt((*start, *first), prompt_tokens - len(first), temperature=1.0, seed=seed)
        for seed, first in zip(seeds, firsts, strict=True)
    ]
    answers = dict(engine.run(prompts))
    for place, seed in enumerate(seeds):
        tokens = [*firsts[place], *answers[place]]
        if tokenizer.chat_template:
            if tokens[-1] not in engine.eos_ids:
                continue
        else:
            # A plain text need not end: its beginning, of random length, is the prompt.
            tokens = tokens[: random.Random(seed).randint(min(_MIN_TEXT_TOKENS, prompt_tokens), prompt_tokens)]
        text, own = (
            str(tokenizer.decode(part, skip_special_tokens=True)).strip()
            for part in (tokens, tokens[len(firsts[place]) :])
        )
        if len(own.split()) >= _MIN_WORDS and "\ufffd" not in text:
            yield text


def _first_words(tokenizer: PreTrainedTokenizerBase, seed: int, prompt_tokens: int, openings: float) -> list[int]:
    """The tokens of ours that this seed's prompt begins with; none if it begins freely, or if they leave no room."""
    chance = random.Random(f"opening {seed}")  # apart from the other uses of the seed
    if chance.random() >= openings:
        return []
    tokens = tokenizer.encode(begun(chance), add_special_tokens=False)
    return tokens if len(tokens) < prompt_tokens else []


def sift(candidates: Iterator[str], sieve: Sieve) -> list[str]:
    """The candidates without near-duplicates of earlier ones."""
    return [text for text in candidates if sieve.admit(text)]
