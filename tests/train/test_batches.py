"""Which texts and anchors a step trains on."""

from collections import Counter

import numpy as np
import pytest

from stridelm import InputError
from stridelm.train.batches import Batch, Batches, make_batch
from stridelm.train.rollouts import Text
from stridelm.train.settings import TrainSettings

SETTINGS = TrainSettings(texts=4, length=512, anchors=48, seed=5)
MIXED = [40, 100, 128, 129, 200, 256, 257, 300, 512, 700] * 5


def text(number: int, length: int, prompt_length: int = 10) -> Text:
    """Its tokens say which one it is."""
    return Text(np.full(length, number, dtype=np.int32), prompt_length)


def mixed() -> list[Text]:
    return [text(number + 1, length) for number, length in enumerate(MIXED)]


def numbers(batch: Batch) -> list[int]:
    return batch.ids_BT[:, 0].tolist()


def assert_same(ours: Batch, theirs: Batch) -> None:
    assert np.array_equal(ours.ids_BT, theirs.ids_BT)
    assert np.array_equal(ours.lengths_B, theirs.lengths_B)
    assert np.array_equal(ours.anchors_BA, theirs.anchors_BA)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    batches = Batches(mixed(), SETTINGS)
    steps = batches.steps_per_epoch
    in_order = [batches[step] for step in range(2 * steps + 3)]
    for step in (2 * steps + 2, 0, steps, steps - 1, 1):
        assert_same(batches[step], in_order[step])
        assert_same(Batches(mixed(), SETTINGS)[step], in_order[step])


def test_seeds_and_epochs_differ() -> None:
    batches, other = Batches(mixed(), SETTINGS), Batches(mixed(), TrainSettings(texts=4, length=512, seed=6))
    steps = batches.steps_per_epoch
    orders = [[numbers(each[start + step]) for step in range(steps)] for each, start in ((batches, 0), (other, 0))]
    orders.append([numbers(batches[steps + step]) for step in range(steps)])
    assert orders[0] != orders[1] and orders[0] != orders[2]
    one = Batches([text(1, 200)] * 4, SETTINGS)
    assert not np.array_equal(one[0].anchors_BA, one[1].anchors_BA), "the same texts, other anchors"


def test_an_epoch_shows_every_text_and_fills_up_evenly() -> None:
    batches = Batches(mixed(), SETTINGS)
    for epoch in range(3):
        first = epoch * batches.steps_per_epoch
        seen = Counter(each for step in range(batches.steps_per_epoch) for each in numbers(batches[first + step]))
        assert seen.keys() == set(range(1, len(MIXED) + 1))
        for width, members in batches.buckets.items():
            times = {seen[number + 1] for number in members}
            assert max(times) - min(times) <= 1, width


def test_a_bucket_smaller_than_a_batch_is_repeated() -> None:
    batches = Batches([text(1, 100), text(2, 100), text(3, 100)], SETTINGS)
    assert batches.steps_per_epoch == 1
    assert sorted(Counter(numbers(batches[0])).values()) == [5, 5, 6]


def test_texts_lie_in_the_narrowest_bucket_that_holds_them() -> None:
    batches = Batches(mixed(), SETTINGS)
    assert set(batches.buckets) == {512, 256, 128}
    for step in range(batches.steps_per_epoch):
        batch = batches[step]
        width = batch.ids_BT.shape[1]
        assert all(width // 2 < length <= width or width == 128 for length in batch.lengths_B)
        for row, number in enumerate(numbers(batch)):
            assert batch.lengths_B[row] == min(MIXED[number - 1], 512)
            assert (batch.ids_BT[row, : batch.lengths_B[row]] == number).all()
            assert not batch.ids_BT[row, batch.lengths_B[row] :].any()


@pytest.mark.parametrize(
    ("length", "anchors", "widths"),
    [(512, 48, {512, 256, 128}), (448, 48, {448, 224}), (512, 6, {512, 256}), (512, 7, {512}), (300, 48, {300, 150})],
)
def test_every_bucket_has_as_many_tokens_and_chains(length: int, anchors: int, widths: set[int]) -> None:
    settings = TrainSettings(texts=4, length=length, anchors=anchors)
    batches = Batches([text(1, each) for each in range(20, length + 1)], settings)
    assert set(batches.buckets) == widths
    shapes = {step: batches[step] for step in range(batches.steps_per_epoch)}.values()
    assert {batch.ids_BT.shape[1] for batch in shapes} == widths
    assert {batch.ids_BT.size for batch in shapes} == {4 * length}
    assert {batch.anchors_BA.size for batch in shapes} == {4 * anchors}


def test_anchors_lie_from_the_prompts_last_token_to_the_third_from_the_end() -> None:
    """Behind the anchor comes the token that it gives itself, then one that a mask has to find."""
    texts = [text(1, 30, prompt_length=10), text(2, 13, prompt_length=10), text(3, 900, prompt_length=1)]
    anchors_BA = make_batch(texts, 64, 4000, np.random.default_rng(0)).anchors_BA
    assert (np.diff(anchors_BA, axis=1) >= 0).all()
    assert [set(row) for row in anchors_BA.tolist()] == [set(range(9, 28)), {9, 10}, set(range(62))]


def test_texts_without_room_for_a_mask_are_left_out() -> None:
    cut, fits = text(2, 600, prompt_length=510), text(3, 600, prompt_length=509)
    short, longer = text(4, 12), text(5, 13)
    batches = Batches([text(1, 512), cut, fits, short, longer], SETTINGS)
    assert [int(each.tokens[0]) for each in batches.texts] == [1, 3, 5]
    with pytest.raises(InputError, match=r"--length \(512\)"):
        Batches([cut, short], SETTINGS)
    with pytest.raises(InputError, match="no text is left"):
        Batches([], SETTINGS)
