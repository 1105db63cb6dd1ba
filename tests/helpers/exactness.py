"""Decoders against the naive reference: prompts, settings, and what compares and counts."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import torch

from fake_drafters import AlwaysRight, AlwaysWrong, SomewhereRight
from reference import NEAR_TIE, Decision, first_departure, reference
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.contracts import Grammar, Policy
from stridelm.decode.speculative import Speculative
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings
from stridelm.types import Sequence
from tally import counts

log = logging.getLogger("exactness")
SETTINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.8, seed=1),
    "hot": SamplingParams(temperature=1.5, seed=2**64 - 1),
    "top_k": SamplingParams(temperature=1.0, top_k=5, seed=3),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8, seed=4),
    "min_p": SamplingParams(temperature=1.0, min_p=0.1, seed=5),
    "repetition": SamplingParams(repetition_penalty=1.3),
    "presence": SamplingParams(temperature=0.7, presence_penalty=0.6, frequency_penalty=0.4, seed=6),
    "bias": SamplingParams(logit_bias={65: 2.0, 66: float("-inf"), 67: -3.0}),
    "all": SamplingParams(
        temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.1, logit_bias={70: 1.0}, seed=7,
    ),
}  # fmt: skip
EXACT = ("autoregressive", "ngram", "draft", "self", "heads", "ensemble", "auto")
"""The decoders that promise the text of plain decoding; one more is one more name here."""
FAKES = {"right": AlwaysRight, "wrong": AlwaysWrong, "tree": SomewhereRight}
DECODERS = (*EXACT, *FAKES)
READERS = ("ngram", "ensemble", "auto")
"""The decoders that draft from a prediction."""
PREDICTIONS: dict[str, Callable[[list[int]], list[int]]] = {
    "right": lambda answer: answer,
    "wrong": lambda answer: [(token + 1) % 200 for token in answer],
    "empty": lambda answer: [],
    "short": lambda answer: answer[: len(answer) // 2],
    "long": lambda answer: [*answer, *answer[:9], 5, 6, 7],
    "edited": lambda answer: [*answer[:6], 7, 8, *answer[6:14], *answer[17:24], 9, *answer[25:]],
    "repeated": lambda answer: [*answer[:8], *answer[4:12], *answer[:8], *answer],
}
"""What a prediction may be, made of the answer that is to come."""
PROMPTS = ("abcabcabcabd abcabc", "The quick brown fox jumps over the lazy dog, and the quick brown", "x")
BUILTIN_PROMPTS = (
    "Repeat three times: the cat sat on the mat.",
    "A train travels 60 miles in 1.5 hours. What is its average speed?",
    "Translate to French: Good morning, my friend.",
)
VARIED_PROMPTS = (
    "Hi",
    "A baker sells 12 loaves a day at $3 each. How much does she earn in a week? Show every step.",
    "Solve for x: 3x + 7 = 31. Then check your answer.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Write a C program that prints the multiplication table of 7.",
    "Translate to French: The train to Paris leaves at nine o'clock, and I am still asleep.",
    "Übersetze ins Englische: Der Hund schläft unter dem Tisch, während es draußen regnet.",
    "¿Cuál es la capital de España y cuántos habitantes tiene?",
    "请用中文介绍一下北京。",
    "List ten animals that live in the sea, numbered.",
    "Tell a short story about a lighthouse keeper and a lost whale.",
    'Write a JSON array of five users, each with "id", "name" and "email".',
    "Count from one to forty in words, separated by commas.",
    "Repeat this sentence ten times: the cat sat on the mat.",
    "Write a haiku about the first snow, then explain it.",
    "?!... --- ((([[[ {{{ ### ~~~ ;;; ::: '' `` // <<< >>> @@@ $$$ %%% ^^^ &&& *** what is this?!",
    "Who wrote Hamlet, when, and what is it about?",
    "Extract all names and years: Ada Lovelace (1815-1852) met Charles Babbage in 1833; Alan Turing was born in 1912.",
    "Explain to a child why the sky is blue.",
    "Summarise in two sentences. The village lay at the end of a long valley, where the road turned into a path and "
    "the path into a track for goats. In winter the snow closed it off for weeks, and the people lived on what they "
    "had stored in autumn: cheese, dried apples, flour and salted meat. They told stories in the evenings, always the"
    " same ones, and nobody minded, because each winter the stories came out a little different. One year a stranger "
    "arrived just before the first storm. He carried a box with a glass front and a handle, and he would not say what"
    " it was for. The children followed him from door to door, and the dogs followed the children. When the snow came"
    " he was still there, and so he stayed in the house of the miller, who had a bed to spare and a curious mind. On "
    "the third evening he opened the box, turned the handle, and the wall of the mill filled with light and people "
    "who moved.",
)


def with_length(params: SamplingParams, max_tokens: int) -> SamplingParams:
    return replace(params, max_tokens=max_tokens)


def answers(
    model: LanguageModel,
    policy: Policy,
    prompts: list[list[int]],
    params: SamplingParams,
    eos_ids: frozenset[int] | None = None,
    start: Callable[[], Grammar | None] = lambda: None,
    predictions: Items[Items[int]] = (),
) -> list[list[int]]:
    """Run the engine on all prompts at once. Answers end with the model's own tokens for that, or with these, and each
    keeps to a grammar that `start` gives, if it gives one. `predictions`: one per prompt, or none at all."""
    ends = model.target.eos_ids if eos_ids is None else eos_ids
    sequences = [
        Sequence(list(ids), params, policy, ends, model.target.context_length, grammar=start()) for ids in prompts
    ]
    for sequence, prediction in zip(sequences, predictions, strict=bool(predictions)):
        sequence.prediction = tuple(prediction)
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(model.engine)
        model.engine.forward.cache.check_integrity()
    assert model.engine.forward.cache.free_blocks == model.engine.forward.cache.block_count, (
        "blocks were not given back"
    )
    return [sequence.output for sequence in sequences]


def policy_for(name: str, model: LanguageModel, prompts: list[list[int]], expected: list[list[Decision]]) -> Policy:
    if name in FAKES:
        known = [[decision.token for decision in decisions] for decisions in expected]
        return Speculative(FAKES[name](dict(zip(map(tuple, prompts), known, strict=True))))
    return model._policy(DecodeSettings(name))


_written: dict[tuple[object, ...], list[Decision]] = {}


def expected_of(
    oracle: torch.nn.Module, prompt: list[int], params: SamplingParams, eos_ids: frozenset[int], *, choice: int = 0
) -> list[Decision]:
    """What the reference writes: worked out once, however many decoders are compared with it."""
    key = (oracle, tuple(prompt), repr(params), eos_ids, choice)
    if key not in _written:
        _written[key] = reference(oracle, prompt, params, eos_ids, choice=choice)
    return _written[key]


def assert_same(case: str, expected: list[Decision], tokens: list[int]) -> None:
    counts["cases"] += 1
    counts["tokens"] += len(expected)
    at = first_departure(expected, tokens)
    if at is None:
        return
    assert at < len(expected) and expected[at].margin < NEAR_TIE, (
        f"{case}: token {at} is {tokens[at : at + 1]}, the reference has {expected[at : at + 1]}"
    )
    counts["near-tie"] += 1
    log.warning("%s: near-tie at token %d, margin %.1e", case, at, expected[at].margin)
