"""Whole steps of the native backend: they write what plain decoding writes, and their parts decide as the host's do."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import stridelm
from exactness import PREDICTIONS, PROMPTS, answers
from native import forward_of, load_native, skip_without_kernels
from stepping import step_of
from stridelm.api import LanguageModel
from stridelm.backends.native.stepper import NativeStepper
from stridelm.contracts import Gate
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.step_kind import ENGINE_FIELDS
from stridelm.models.adapter import save_adapter
from stridelm.params import InputError, SamplingParams
from stridelm.settings import LoadSettings
from stridelm.stepper import Continuation
from stridelm.types import MASKS, PREDICTION, ROOT, Sequence, Stride
from tiny import load_tiny, random_adapter, save_tiny

FREE = Cost((1, 64), (1.0, 1.0))
"""Rows cost nothing: trees are as wide as they may be, and masks hang everywhere."""
DEAR = Cost((1, 64), (1.0, 64.0))
BIASES = {0: -math.inf, 1: 2.5, 2: -math.inf, 12: -1.0, 28: 3.0, 29: -4.0, 33: 1.5}
"""Digits and punctuation of the built-in model are among them."""
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, seed=5),
    "biased": SamplingParams(logit_bias=BIASES),
    "sampled, biased": SamplingParams(temperature=0.9, top_p=0.95, seed=5, logit_bias=BIASES),
}
SHAPE: dict[str, Any] = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 100}
NO_END: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, native_cache: Path) -> LanguageModel:
    folder, adapter = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("adapter")
    save_tiny(folder, **SHAPE)
    save_adapter(adapter, random_adapter(load_tiny(folder)))
    return load_native(folder, native_cache, adapter=adapter, quantize="q8", threads=2)


@pytest.fixture(scope="module")
def builtin() -> LanguageModel:
    skip_without_kernels()
    return stridelm.load(settings=LoadSettings(backend="native", cache_tokens=4096, threads=1))


def gate_of(model: LanguageModel) -> Gate:
    gate = forward_of(model).gate
    assert gate is not None
    return gate


def drafting(model: LanguageModel, *, branches: int = 1, nodes: int = 16, look_up: bool = False, k: int = 9) -> Planned:
    """Drafts in every step, since rows are free."""
    gate = gate_of(model)
    drafters = (NgramDrafter(8),) if look_up else ()
    return Planned(FREE, masks=MaskDrafter(gate, branches), k=min(k, gate.k), drafters=drafters, nodes=nodes)


def strides_of(model: LanguageModel, policy: Planned | Autoregressive, prompt: str, **asked: Any) -> list[Stride]:
    params = asked.pop("params", SamplingParams())
    sequence = Sequence(
        model.encode(prompt), replace(params, max_tokens=48), policy, NO_END, model.target.context_length,
        is_traced=True, **asked,
    )  # fmt: skip
    return list(model.engine.strides_of(sequence))


# What is written


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("branches", [1, 3])
def test_drafts_of_every_form_change_no_token(setting: str, branches: int, builtin: LanguageModel) -> None:
    params = SETTINGS[setting]
    plain = strides_of(builtin, Autoregressive(), "Count from one to thirty.", params=params)
    policy = drafting(builtin, branches=branches, nodes=24)
    strides = strides_of(builtin, policy, "Count from one to thirty.", params=params)
    assert [t for each in strides for t in each.tokens] == [t for each in plain for t in each.tokens]
    assert [round(c, 12) for each in strides for c in each.confidence] == [
        round(c, 12) for each in plain for c in each.confidence
    ]
    assert all(each.is_own for each in (*strides[1:], *plain[1:])) and not strides[0].is_own
    assert len(strides) < len(plain) / 1.3
    if branches > 1:  # rows of a second branch were kept, so keys and values had to move
        assert any(tuple(each.trace.kept) != tuple(range(len(each.tokens))) for each in strides if each.trace)


def test_a_trace_shows_what_was_run(builtin: LanguageModel) -> None:
    policy = drafting(builtin, branches=2, look_up=True)
    text = builtin.encode("Repeat three times: the cat sat on the mat.")
    seen: set[str] = set()
    for stride in strides_of(builtin, policy, "Repeat three times: the cat sat on the mat."):
        trace = stride.trace
        assert trace is not None
        block, path = trace.block, [row - 1 for row in trace.kept[1:]]
        if stride.is_own:
            assert block.tokens[0] == text[-1] and block.start == len(text) - 1
            assert [block.tree.tokens[node] for node in path] == list(stride.tokens[: len(path)])
            assert [block.tree.parents[node] for node in path] == [ROOT, *path][:-1] if path else True
            assert stride.sources == (*(block.tree.sources[node] for node in path), "model")[: len(stride.tokens)]
            assert stride.drafted == len(block.tree)
            seen |= {*block.tree.sources} | ({"masks"} if block.masks else set())
        text += stride.tokens
    assert seen == {MASKS, "ngram", "masks"}


@pytest.mark.parametrize("setting", SETTINGS)
def test_own_draws_are_the_hosts(setting: str, builtin: LanguageModel) -> None:
    params, prompt = SETTINGS[setting], "Count from one to thirty."
    own = strides_of(builtin, Autoregressive(), prompt, params=params)
    host = strides_of(builtin, Autoregressive(), prompt, params=params, alternatives=1)
    assert [each.is_own for each in (own[-1], host[-1])] == [True, False]
    assert [each.tokens for each in own] == [each.tokens for each in host]
    assert [each.confidence for each in own] == [pytest.approx(each.confidence, rel=1e-5) for each in host]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_trace_reports_what_else_was_likely(setting: str, builtin: LanguageModel) -> None:
    params, prompt = SETTINGS[setting], "Count from one to thirty."
    host = strides_of(builtin, Autoregressive(), prompt, params=params, alternatives=5)
    own = strides_of(builtin, drafting(builtin, branches=2), prompt, params=params, optional_alternatives=5)
    assert all(each.is_own for each in own[1:])
    found, expected = ([place for each in strides for place in each.alternatives] for strides in (own, host))
    assert [[token for token, _ in place] for place in found] == [[token for token, _ in place] for place in expected]
    for one, other in zip(found, expected, strict=True):
        assert [chance for _, chance in one] == pytest.approx([chance for _, chance in other], rel=1e-4)
    trees = [each.trace.block.tree for each in own[1:] if each.trace]
    assert any(trees) and all(len(tree.scores) == len(tree) for tree in trees)
    assert all(0 < score <= 1 for tree in trees for score in tree.scores)


def test_a_text_without_a_token_left_is_refused(tiny_model: LanguageModel) -> None:
    vocabulary = tiny_model.target.vocabulary
    bans_all = SamplingParams(logit_bias=dict.fromkeys(range(vocabulary), -math.inf))
    with pytest.raises(InputError, match="no token is left to draw"):
        strides_of(tiny_model, drafting(tiny_model), PROMPTS[0], params=bans_all)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_predictions_change_no_token(prediction: str, setting: str, tiny_model: LanguageModel) -> None:
    params = replace(SETTINGS[setting], max_tokens=40)
    prompts = [tiny_model.encode(text, raw=True) for text in PROMPTS]
    expected = answers(tiny_model, Autoregressive(), prompts, params, NO_END)
    predicted = [PREDICTIONS[prediction](answer) for answer in expected]
    policy = drafting(tiny_model, look_up=True)
    assert answers(tiny_model, policy, prompts, params, NO_END, predictions=predicted) == expected


def test_a_right_prediction_is_followed_by_the_backend(tiny_model: LanguageModel) -> None:
    (answer,) = answers(
        tiny_model, Autoregressive(), [tiny_model.encode(PROMPTS[0])], SamplingParams(max_tokens=48), NO_END
    )
    strides = strides_of(tiny_model, drafting(tiny_model, look_up=True), PROMPTS[0], prediction=tuple(answer))
    assert sum(each.predicted for each in strides if each.is_own) > 20
    assert len(strides) < 10
    assert {source for each in strides for source in each.sources} >= {PREDICTION}


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 9])
def test_answers_end_where_their_room_ends(max_tokens: int, tiny_model: LanguageModel) -> None:
    prompts = [tiny_model.encode(text, raw=True) for text in PROMPTS]
    params = SamplingParams(max_tokens=max_tokens)
    found = answers(tiny_model, drafting(tiny_model, look_up=True), prompts, params, NO_END)
    assert found == answers(tiny_model, Autoregressive(), prompts, params, NO_END)
    assert {len(each) for each in found} == {max_tokens}


def test_answers_end_with_the_context(tiny_model: LanguageModel) -> None:
    context = tiny_model.target.context_length
    prompt = (tiny_model.encode(PROMPTS[0], raw=True) * 30)[: context - 20]
    params = SamplingParams(max_tokens=1000)
    (found,) = answers(tiny_model, drafting(tiny_model, look_up=True), [prompt], params, NO_END)
    assert len(found) == context - len(prompt)
    assert [found] == answers(tiny_model, Autoregressive(), [prompt], params, NO_END)


def test_an_end_among_the_drafts_ends_the_answer(builtin: LanguageModel) -> None:
    prompt = builtin.encode("Say yes.")
    whole = answers(builtin, Autoregressive(), [prompt], SamplingParams(max_tokens=24), NO_END)[0]
    for end in sorted(set(whole)):
        expected = answers(builtin, Autoregressive(), [prompt], SamplingParams(max_tokens=24), frozenset({end}))
        found = answers(builtin, drafting(builtin), [prompt], SamplingParams(max_tokens=24), frozenset({end}))
        assert found == expected and found[0] == whole[: whole.index(end) + 1]


@pytest.mark.parametrize("seed", range(3))
def test_texts_that_come_and_go_write_what_they_write_alone(seed: int, tiny_model: LanguageModel) -> None:
    """In a cache that is too small for all of them, so that blocks are taken back and texts are read again."""
    dice, engine = Random(seed), tiny_model.engine
    policies = [drafting(tiny_model, look_up=True), drafting(tiny_model, branches=3), Autoregressive()]
    waiting = [
        Sequence(
            tiny_model.encode(dice.choice(PROMPTS), raw=True) * dice.randint(1, 3),
            replace(dice.choice([*SETTINGS.values()]), max_tokens=dice.randint(5, 80), seed=number),
            dice.choice(policies), NO_END, tiny_model.target.context_length, choice=number % 2,
        )
        for number in range(24)
    ]  # fmt: skip
    running: list[Sequence] = []
    finished: list[Sequence] = []
    most = 0
    while waiting or running:
        while waiting and dice.random() < 0.4:
            running.append(waiting.pop())
            engine.add(running[-1])
        most = max(most, len(running))
        if running and dice.random() < 0.02:
            engine.remove(running.pop(dice.randrange(len(running))))
        step_of(engine)
        engine.forward.cache.check_integrity()
        finished += [each for each in running if each.finish_reason]
        running = [each for each in running if not each.finish_reason]
    assert most > 3 and engine.own_steps.failures == 0
    assert sum(each.stats.own_forwards for each in finished) > 100
    for each in finished:
        prompt, params = each.tokens[: each.prompt_length], each.params
        alone = Sequence(prompt, params, Autoregressive(), NO_END, each.context_length, choice=each.choice)
        list(engine.strides_of(alone))
        assert each.output == alone.output


def test_more_texts_than_places_of_the_first_stepper(tiny_model: LanguageModel) -> None:
    prompts = [tiny_model.encode(f"{number} {PROMPTS[2]}", raw=True) for number in range(20)]
    params = SamplingParams(max_tokens=12)
    expected = [answers(tiny_model, Autoregressive(), [prompt], params, NO_END)[0] for prompt in prompts]
    assert answers(tiny_model, drafting(tiny_model), prompts, params, NO_END) == expected


def test_logits_that_are_no_numbers_are_refused(tmp_path: Path, native_cache: Path) -> None:
    save_tiny(tmp_path, **SHAPE)
    model = load_native(tmp_path, native_cache, quantize="q8")
    sequence = Sequence(model.encode("x", raw=True), SamplingParams(max_tokens=9), Autoregressive(), NO_END, 64)
    strides = model.engine.strides_of(sequence)
    assert [next(strides).is_own for _ in range(2)] == [False, True]
    damaged = np.full(forward_of(model).width, np.nan, np.float32)
    forward_of(model).weights.model.last_norm = damaged.ctypes.data
    with pytest.raises(InputError, match="not finite"):
        next(strides)


def counted_begins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places where texts begin from now on."""
    begun: list[int] = []
    begin = NativeStepper.begin

    def counted(stepper: NativeStepper, place: int, text: Continuation) -> None:
        begun.append(place)
        begin(stepper, place, text)

    monkeypatch.setattr(NativeStepper, "begin", counted)
    return begun


def test_texts_that_take_turns_keep_their_masks(tiny_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the lanes of a race do. Held now and then, a text runs the same steps as alone."""
    params = SamplingParams(max_tokens=60)

    def text(place: int, policy: Planned | Autoregressive) -> Sequence:
        prompt = tiny_model.encode(PROMPTS[place], raw=True)
        return Sequence(prompt, params, policy, NO_END, tiny_model.target.context_length)

    policies = drafting(tiny_model), Autoregressive()
    alone = [text(place, policy) for place, policy in enumerate(policies)]
    for each in alone:
        list(tiny_model.engine.strides_of(each))
    begun, engine = counted_begins(monkeypatch), tiny_model.engine
    racers = [text(place, policy) for place, policy in enumerate(policies)]
    for each in racers:
        engine.add(each)
    while any(each.finish_reason is None for each in racers):
        behind = min((each for each in racers if not each.finish_reason), key=lambda each: len(each.output))
        for each in racers:
            each.is_held = each is not behind
        step_of(engine)
    assert len(begun) == 2
    for raced, before in zip(racers, alone, strict=True):
        assert raced.output == before.output and raced.stats.forwards == before.stats.forwards


def test_texts_keep_their_places_while_a_request_waits(
    tmp_path: Path, native_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For room in the cache: unused blocks of the others are taken back before every step."""
    save_tiny(tmp_path / "model", **SHAPE)
    save_adapter(tmp_path / "adapter", random_adapter(load_tiny(tmp_path / "model")))
    model = load_native(tmp_path / "model", native_cache, adapter=tmp_path / "adapter", quantize="q8", cache_tokens=512)
    begun = counted_begins(monkeypatch)
    params = SamplingParams(max_tokens=60)
    texts = [
        Sequence(
            [n % 97 for n in range(length, 2 * length)], params, drafting(model), NO_END, model.target.context_length
        )
        for length in (200, 440)
    ]
    waits = 0
    for text in texts:
        model.engine.add(text)
    while texts[0].finish_reason is None:
        model.engine.step()
        model.engine.forward.cache.check_integrity()
        waits += bool(model.engine.scheduler.waiting)
    assert waits > 10 and len(begun) == 1
    model.engine.remove(texts[1])
    alone = Sequence(texts[0].tokens[:200], params, Autoregressive(), NO_END, model.target.context_length)
    list(model.engine.strides_of(alone))
    assert alone.output == texts[0].output


def test_other_costs_make_other_plans(builtin: LanguageModel) -> None:
    """In turn, on one stepper: it goes by those of the text."""
    prompt = "Repeat three times: the cat sat on the mat."
    gate = gate_of(builtin)
    drafted: list[int] = []
    for cost in (FREE, DEAR, FREE):
        policy = Planned(cost, masks=MaskDrafter(gate, 1), k=gate.k, drafters=(NgramDrafter(8),))
        drafted.append(sum(each.drafted for each in strides_of(builtin, policy, prompt)))
    assert drafted[0] == drafted[2] > 20 and drafted[1] == 0


def test_decisions_are_timed(tiny_model: LanguageModel) -> None:
    untouched = forward_of(tiny_model).stepper(0, 3, NO_END)
    strides_of(tiny_model, drafting(tiny_model), PROMPTS[0])
    decided = [each.seconds_of_decision for each in forward_of(tiny_model).steppers if each is not untouched]
    assert untouched.seconds_of_decision == 0 < max(decided)


def test_explain_says_who_plans(builtin: LanguageModel) -> None:
    builtin.generate("Hello", SamplingParams(max_tokens=8))
    first, costs, *own = builtin.explain("auto")
    assert "the backend plans its own steps" in first and costs.startswith("a forward here takes")
    assert own[0].startswith("own steps, of ") and not any(line.startswith("blocks") for line in own)


def test_what_is_not_obeyed_takes_the_hosts_steps(tiny_model: LanguageModel) -> None:
    stepper = forward_of(tiny_model).stepper(0, 16, NO_END)
    assert stepper is forward_of(tiny_model).stepper(5, 16, NO_END) and stepper.plans
    assert not stepper.obeys & {"grammar", "alternatives", "repetition_penalty", "presence_penalty"}
    assert stepper.obeys.isdisjoint(ENGINE_FIELDS)
    for params in (SamplingParams(presence_penalty=0.1), SamplingParams(repetition_penalty=1.2)):
        strides = strides_of(tiny_model, drafting(tiny_model), PROMPTS[0], params=params)
        assert not any(each.is_own for each in strides)


def test_a_stepper_needs_no_costs_for_one_token_at_a_time(tiny_model: LanguageModel) -> None:
    assert Autoregressive().own_plan is not None
    assert isinstance(forward_of(tiny_model).stepper(0, 1, NO_END), NativeStepper)
