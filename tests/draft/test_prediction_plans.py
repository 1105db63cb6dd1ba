"""Predictions among other drafts: when the planner asks for them, when masks hang beside them, who is credited."""

from hashing_model import CONTEXT, HashForward, letters
from predictions import ENDLESS, FLAT, right_answer, strides_of, with_answer
from stridelm.api import LanguageModel
from stridelm.decode.planned import Planned
from stridelm.decode.rates import Trial
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.ngram import NgramDrafter
from stridelm.engine.engine import Engine
from stridelm.params import SamplingParams
from stridelm.types import PREDICTION, Sequence


class AlwaysOne(Trial):
    """A trial that plain decoding has won."""

    asked = 0

    def takes_one(self) -> bool:
        self.asked += 1
        return True


def test_auto_drafts_from_a_prediction_also_where_the_batch_takes_one_token_at_a_time() -> None:
    policy = Planned(FLAT, drafters=(NgramDrafter(4),), switches=True)
    others = [Sequence(with_answer(seed, policy).tokens, ENDLESS, policy, frozenset(), CONTEXT) for seed in (5, 6, 7)]
    sequence = with_answer(0, policy)
    sequence.prediction = tuple(right_answer(sequence))
    trial = AlwaysOne()
    policy.trials = dict.fromkeys(range(8), trial)
    found = strides_of(Engine(HashForward(64), letters()), sequence, *others)
    assert trial.asked >= 5 and sequence.output == right_answer(sequence)
    assert all(stride.predicted for stride in found[sequence][:-1])
    assert all(stride.drafted == 0 for stride in found[others[0]][: len(found[sequence])])


def test_auto_asks_for_drafts_from_a_prediction_also_where_look_up_does_not_pay() -> None:
    policy = Planned(FLAT, drafters=(NgramDrafter(4),), switches=True)
    policy.uses[0].seconds, policy.uses[0].tokens = 1e9, 0.0
    sequence = with_answer(0, policy)
    found = strides_of(Engine(HashForward(64), letters()), sequence)[sequence]
    assert sequence.output == right_answer(sequence)
    assert sum(stride.sources.count(PREDICTION) for stride in found) > 90


def test_a_drafter_is_credited_with_what_a_prediction_brings() -> None:
    policy = Planned(FLAT, drafters=(NgramDrafter(4),), switches=True)
    for seed in range(3):
        sequence = with_answer(seed, policy)
        sequence.prediction = tuple(right_answer(sequence))
        strides_of(Engine(HashForward(64), letters()), sequence)
    assert policy.uses[0].tokens > 2  # without the prediction it falls below one


def test_no_masks_hang_where_a_prediction_stands(language_model: LanguageModel) -> None:
    gate = language_model.gate
    assert gate is not None
    policy = Planned(FLAT, masks=MaskDrafter(gate), k=gate.k, drafters=(NgramDrafter(4),))
    ids, params = language_model.encode("abcd", raw=True), SamplingParams(max_tokens=80)
    plain = language_model.generate(ids, params, decoder="autoregressive")
    masks: dict[bool, list[int]] = {}
    for prediction in (plain.token_ids, ()):
        sequence = Sequence(list(ids), params, policy, frozenset(), language_model.target.context_length)
        sequence.prediction, sequence.is_traced = prediction, True
        (strides,) = strides_of(language_model.engine, sequence).values()
        traces = [stride.trace for stride in strides if stride.trace is not None and stride.finish_reason is None]
        masks[bool(prediction)] = [trace.block.masks for trace in traces]
    assert not any(masks[True][1:]) and any(masks[False])  # whether an answer begins so nobody knows


def test_masks_hang_where_a_prediction_has_proved_wrong(language_model: LanguageModel) -> None:
    gate = language_model.gate
    assert gate is not None
    ids, params = language_model.encode("abcd", raw=True), SamplingParams(max_tokens=80)
    right = language_model.generate(ids, params, decoder="autoregressive").token_ids
    wrong = [token for a, b, c in zip(right, right[1:], right[2:], strict=False) for token in (a, b, (c + 1) % 200)]
    with_masks: list[int] = []
    for prediction in ((), tuple(wrong)):
        policy = Planned(FLAT, masks=MaskDrafter(gate), k=gate.k, drafters=(NgramDrafter(4),))
        sequence = Sequence(list(ids), params, policy, frozenset(), language_model.target.context_length)
        sequence.prediction, sequence.is_traced = prediction, True
        (strides,) = strides_of(language_model.engine, sequence).values()
        assert sequence.output == list(right)
        with_masks.append(sum(stride.trace.block.masks > 0 for stride in strides if stride.trace is not None))
    assert with_masks[1] > 0.7 * with_masks[0] > 0
