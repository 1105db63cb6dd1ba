"""The planner against brute force over all small blocks, on curves of every kind; and what it does at the extremes."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridelm.decode import rates
from stridelm.decode.cost import Cost
from stridelm.decode.planner import Outlook, Plan, choose, gains, path_probabilities
from stridelm.decode.rates import Trial
from stridelm.types import NO_DRAFT, ROOT, DraftTree

CPU = Cost((1, 2, 4, 6, 9, 16, 25), (1.0, 1.1, 1.35, 1.5, 1.6, 1.95, 2.5), masks=0.05, mask_row=0.01)
GPU = Cost((1, 16, 64, 81), (1.0, 1.13, 1.21, 1.29))
COMPUTE_BOUND = Cost((1, 2, 64), (1.0, 2.0, 64.0))


def ancestors(tree: DraftTree, node: int) -> list[int]:
    return [] if node == ROOT else [*ancestors(tree, tree.parents[node]), node]


def worth(tree: DraftTree, kept: tuple[int, ...], anchors: tuple[int, ...], masks: int, outlook: Outlook) -> float:
    """What a block is worth, written out: every node of it may be where the path ends."""
    paths, total = path_probabilities(tree), 1.0 + sum(path_probabilities(tree)[node] for node in kept)
    for end in (ROOT, *kept):
        reached = 1.0 if end == ROOT else paths[end]
        ends_here = reached - sum(paths[child] for child in kept if tree.parents[child] == end)
        line = [ROOT, *ancestors(tree, end)]
        brings = outlook.left[min(len(line) - 1, len(outlook.left) - 1)]
        for since, node in enumerate(reversed(line)):
            if node in anchors:
                row = outlook.fresh[outlook.mask_options.index(masks)]
                brings = max(brings, row[since] if since < len(row) else 0.0)
                break
        total += max(0.0, ends_here) * brings
    rows = masks * len(anchors)
    seconds = outlook.seconds[outlook.pending + len(kept) + rows]
    if rows:
        seconds += outlook.mask_seconds + outlook.mask_row_seconds * rows
    return total - outlook.rate * seconds


def subsets(items: tuple[int, ...]) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def best_by_force(tree: DraftTree, outlook: Outlook, *, only_beginnings: bool = False) -> float:
    """Over all sets of nodes that hold their parents, all sets of anchors among them and all numbers of masks."""
    best = -np.inf
    for kept in subsets(tuple(range(len(tree)))):
        if any(tree.parents[node] not in (ROOT, *kept) for node in kept):
            continue
        if only_beginnings and kept != tuple(range(len(kept))):
            continue
        for anchors in subsets((ROOT, *kept)):
            for masks in outlook.mask_options if anchors else (0,):
                best = max(best, worth(tree, kept, anchors, masks, outlook))
    return best


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Up to four nodes; siblings' probabilities come to at most 1; in falling order of path probability."""
    nodes: list[tuple[int, float, float]] = []  # parent, score, path
    left = {ROOT: 1.0}
    for node in range(draw(st.integers(0, 4))):
        parent = draw(st.sampled_from([ROOT, *range(node)]))
        score = draw(st.floats(0.01, 0.99)) * left[parent]
        left[parent] -= score
        left[node] = 1.0
        nodes.append((parent, score, score * (1.0 if parent == ROOT else nodes[parent][2])))
    order = sorted(range(len(nodes)), key=lambda node: -nodes[node][2])
    renamed = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
    return DraftTree.of(
        range(len(order)), [renamed[nodes[node][0]] for node in order], "any", [nodes[node][1] for node in order]
    )


falling = st.lists(st.floats(0, 3), min_size=4, max_size=4).map(lambda values: sorted(values, reverse=True))


@settings(max_examples=300)
@given(
    trees(),
    st.lists(st.floats(0.0, 0.5), min_size=40, max_size=40),
    st.floats(0.1, 4.0),
    st.lists(falling, min_size=0, max_size=2),
    falling,
    st.floats(0, 0.2),
    st.integers(1, 3),
)
def test_the_plan_is_as_good_as_the_best_of_all_small_blocks(
    tree: DraftTree,
    steps: list[float],
    rate: float,
    fresh: list[list[float]],
    left: list[float],
    extra: float,
    pending: int,
) -> None:
    options = (2, 5)[: len(fresh)]
    outlook = Outlook(rate, 1 + np.cumsum(steps), pending, options, extra, extra / 4, fresh, left)
    plan = choose(tree, outlook)
    # Of the tree's beginnings: behind a node that is less likely to stand, masks may bring so much more that another
    # set of nodes is worth more. Where they bring the same everywhere, none is: see below.
    best = best_by_force(tree, outlook, only_beginnings=True)
    assert plan.worth == pytest.approx(best, abs=1e-9)
    assert worth(tree, tuple(range(plan.nodes)), plan.anchors, plan.masks, outlook) == pytest.approx(best, abs=1e-9)


@settings(max_examples=300)
@given(
    trees(), st.lists(st.floats(0.0, 0.5), min_size=40, max_size=40), st.floats(0.1, 4.0), st.floats(0, 3),
    st.integers(1, 3),
)  # fmt: skip
def test_no_other_set_of_nodes_is_better_where_all_ends_are_alike(
    tree: DraftTree, steps: list[float], rate: float, left: float, pending: int
) -> None:
    outlook = Outlook(rate, 1 + np.cumsum(steps), pending, left=(left,))
    assert choose(tree, outlook).worth == pytest.approx(best_by_force(tree, outlook), abs=1e-9)


@pytest.mark.parametrize("cost", [CPU, GPU, COMPUTE_BOUND])
@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.6, 0.8, 0.95])
def test_the_measured_curves_against_brute_force(cost: Cost, acceptance: float) -> None:
    for rate in (1.0, 1.7, 2.6):
        outlook = outlook_of(cost, [acceptance] * 8, rate, options=(2, 4, 8))
        tree = chain_of([acceptance] * 4)
        assert choose(tree, outlook).worth == pytest.approx(best_by_force(tree, outlook), abs=1e-9)


def chain_of(scores: list[float]) -> DraftTree:
    return DraftTree.chain(list(range(len(scores))), "masks", scores)


def outlook_of(cost: Cost, acceptance: list[float], rate: float, options: tuple[int, ...]) -> Outlook:
    seconds = cost.table[:200]
    rows = np.diff(seconds)[1:9].tolist()
    gained = gains(acceptance, rows, rate)
    fresh = [gained[masks] for masks in options]
    return Outlook(rate, seconds, 1, options, cost.masks, cost.mask_row, fresh, (0.0,))


def steady(cost: Cost, acceptance: float) -> Plan:
    """The plan that decoding settles on where every draft stands so often: each plan's pace is the next one's rate."""
    rate = 1 / cost(1)
    plan = choose(NO_DRAFT, outlook_of(cost, [acceptance] * 8, rate, (2, 4, 8)))
    for _ in range(30):
        outlook = outlook_of(cost, [acceptance] * 8, rate, (2, 4, 8))
        plan = choose(chain_of([acceptance] * 8), outlook)
        tokens = 1 + sum(acceptance**depth for depth in range(1, plan.nodes + 1))
        rate += 0.3 * (tokens / cost(1 + plan.nodes, plan.masks * len(plan.anchors)) - rate)
    return plan


def test_rows_that_are_nearly_free_are_used_and_dear_ones_are_not() -> None:
    on_gpu, on_cpu, bound = (steady(cost, 0.8) for cost in (GPU, CPU, COMPUTE_BOUND))
    rows = [1 + plan.nodes + plan.masks * len(plan.anchors) for plan in (on_gpu, on_cpu, bound)]
    assert rows[0] > rows[1] > rows[2] == 1
    assert len(on_gpu.anchors) > len(on_cpu.anchors) > 0


def test_a_poor_drafter_is_not_used() -> None:
    plan = steady(CPU, 0.05)
    assert (plan.nodes, plan.anchors) == (0, ())


def test_masks_lie_where_the_path_probably_ends() -> None:
    outlook = outlook_of(CPU, [0.8] * 8, 1.5, (4,))
    assert choose(chain_of([0.99, 0.99, 0.05]), outlook).anchors == (1,)
    assert choose(chain_of([0.05]), outlook).anchors == (ROOT,)


def test_masks_that_lie_there_already_save_new_ones() -> None:
    outlook = outlook_of(CPU, [0.8] * 8, 1.5, (4,))
    fresh = outlook.fresh[0]
    kept = Outlook(outlook.rate, outlook.seconds, 1, (4,), outlook.mask_seconds, 0.0, outlook.fresh, fresh)
    assert choose(NO_DRAFT, outlook).anchors == (ROOT,)
    assert choose(NO_DRAFT, kept).anchors == ()


def test_gains_are_those_of_the_best_length() -> None:
    assert gains([0.5, 0.5], [0.1, 0.1], 1.0)[2] == pytest.approx([0.5 - 0.1 + 0.25 - 0.1, 0.4, 0.0])
    assert gains([0.5, 0.5], [0.1, 0.3], 1.0)[2] == pytest.approx([0.4, 0.4, 0.0])  # the second does not pay
    assert gains([0.5, 0.5], [0.1, 0.1], 1.0)[1] == pytest.approx([0.4, 0.0, 0.0])
    assert gains([0.2, 0.9], [0.3, 0.1], 1.0)[2] == pytest.approx([0.0, 0.0, 0.0])  # not worth more for being older


def test_a_larger_batch_gets_smaller_blocks() -> None:
    """The same sequence beside others: their rows have used up the cheap part of the curve."""
    rising = Cost((1, 8, 9, 64), (1.0, 1.1, 1.3, 60.0))
    rows = []
    for others in (0, 4, 16):
        seconds = rising.table[others : others + 150]
        gained = gains([0.7] * 8, np.diff(seconds)[1:9].tolist(), 1.5)
        fresh = [gained[masks] for masks in (2, 4)]
        plan = choose(chain_of([0.7] * 4), Outlook(1.5, seconds, 1, (2, 4), fresh=fresh))
        rows.append(1 + plan.nodes + plan.masks * len(plan.anchors))
    assert rows[0] > rows[1] >= rows[2] == 1


def test_the_cost_curve_rises_and_goes_on_beyond_its_end() -> None:
    noisy = Cost((1, 2, 4, 8), (1.0, 1.3, 1.2, 2.0), masks=0.5, mask_row=0.1, context=0.01, sequence=0.2)
    assert (np.diff(noisy.table) >= 0).all()
    assert noisy(3) == pytest.approx(1.3)
    assert noisy(12) == pytest.approx(2.0 + 4 * 0.2)
    assert noisy(2, 2) == pytest.approx(1.3 + 0.5 + 0.2)
    assert noisy(4, context=100, sequences=3) == pytest.approx(1.3 + 4 + 0.4)


def test_two_stages_where_many_masks_are_scored_in_vain() -> None:
    cost = Cost((1,), (1.0,), head=5.0, head_row=0.5)
    assert not cost.is_cheaper_in_two_stages(masks=8, needed=8)
    assert not cost.is_cheaper_in_two_stages(masks=16, needed=8)
    assert cost.is_cheaper_in_two_stages(masks=32, needed=8)


# Trials of a batch


def outcome(seconds_of_one: float, seconds_of_several: float, tokens_of_several: int) -> tuple[list[bool], list[bool]]:
    """Whether one token was taken at a time: in the steps of the trial, and in those after it."""
    trial = Trial()
    chosen: list[bool] = []
    for _ in range(2 * rates._TRIAL):
        takes_one = trial.takes_one()
        chosen.append(takes_one)
        trial.stepped(8 if takes_one else tokens_of_several, seconds_of_one if takes_one else seconds_of_several)
    return chosen[: rates._TRIAL], chosen[rates._TRIAL :]


def test_a_batch_in_which_several_tokens_pay_goes_on_with_them() -> None:
    during, after = outcome(1.0, 1.5, 16)
    assert during.count(True) == rates._TRIAL // rates._EVERY
    assert not any(after)


def test_a_batch_in_which_they_do_not_pay_is_plain() -> None:
    _, after = outcome(1.0, 2.5, 16)
    assert all(after)


def test_one_slow_step_decides_nothing() -> None:
    trial = Trial()
    for number in range(rates._TRIAL):
        takes_one = trial.takes_one()
        trial.stepped(8 if takes_one else 16, 100.0 if number == 4 else 1.0)
    assert not trial.takes_one()


def test_what_lost_again_is_tried_less_often() -> None:
    trial = Trial()

    def until_next_trial() -> int:
        for _ in range(rates._TRIAL):
            trial.stepped(8, 1.0 if trial.takes_one() else 2.0)
        steps = 0
        while trial.takes_one():
            trial.stepped(8, 1.0)
            steps += 1
        return steps

    lengths = [until_next_trial() for _ in range(4)]
    assert [round(steps / rates._HOLDS) for steps in lengths] == [1, 2, 4, 4]
