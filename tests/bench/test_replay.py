"""bench/replay on made-up traces: what is known in closed form, determinism, and that nothing beats the oracle."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bench.replay import circumstances
from bench.replay import run as replay
from bench.replay.device import Fixed as FixedLength
from bench.replay.device import step_times, written
from bench.replay.expected import LOOK_MASKS, Expected
from bench.replay.oracle import least_milliseconds
from bench.replay.play import PLAIN, Choice, Fixed, Happened, View, fixed_choices, play
from bench.replay.prior import Prior, learn
from bench.replay.priors import ADAPTER
from bench.replay.record import Recorder, prompts
from bench.replay.times import StepTimes, load_times, of_forwards
from bench.replay.todays import ABLATIONS, play_all
from bench.replay.trace import LONGEST, PLACE_N, USED_N, Trace, load, probabilities, save, stored
from bench.replay.worth import solve
from native import skip_without_kernels
from stridelm import LoadSettings, SamplingParams
from stridelm import load as load_model
from stridelm.decode.chain_length import ChainLength
from stridelm.decode.draft_prior import FILE, draft_priors
from stridelm.decode.fit_prior import Ease, log_odds
from stridelm.types import ROOT
from stridelm.verify import proposals

TIMES = StepTimes({1: 2.0, 2: 2.2, 4: 2.5, 8: 3.7, 16: 6.5}, masks=0.1, mask_row=0.05, around=0.1, level=0.05)
FREE_ROWS = StepTimes({1: 1.0, 64: 1.0}, masks=0.0, mask_row=0.0, around=0.0, level=0.0, look_up=0.0)
PROMPT, WRITTEN = 6, 60
WRONG, SECOND = 60_000, 61_000


def trace_of(right: float, *, seed: int = 0, kind: str = "made up", score: float | None = None) -> Trace:
    """Every token occurs once, so look-up finds nothing. A draft is right with one probability, which is its score
    unless another is given; a second choice is right half the times that the first one is not."""
    draws = np.random.default_rng(seed)
    tokens = np.arange(1000, 1000 + PROMPT + WRITTEN, dtype=np.uint16)
    place_AN = PROMPT + 1 + np.arange(WRITTEN)[:, None] + PLACE_N[None, :]
    text_AN = tokens[np.minimum(place_AN, len(tokens) - 1)]
    is_right_AN = draws.random(text_AN.shape) < right
    second_AN = np.where(draws.random(text_AN.shape) < 0.5, text_AN, SECOND)
    scores_AN = np.full(text_AN.shape, stored(np.array(right if score is None else score)))
    return Trace(
        kind,
        f"{kind} {seed}",
        PROMPT,
        tokens,
        stored(np.full(WRITTEN, 0.8)),
        np.where(is_right_AN, text_AN, WRONG).astype(np.uint16),
        scores_AN,
        np.where(is_right_AN, SECOND, second_AN).astype(np.uint16),
        np.full_like(scores_AN, stored(np.array(0.1))),
    )


def traces_of(right: float, count: int = 4) -> list[Trace]:
    return [trace_of(right, seed=seed) for seed in range(count)]


def repetitive(seed: int = 0) -> Trace:
    """A text that repeats five tokens, of whose masks nothing stands."""
    made = trace_of(0.0, seed=seed, score=0.3)
    return replace(made, tokens=np.array([1000 + place % 5 for place in range(PROMPT + WRITTEN)], np.uint16))


def test_plain_takes_a_plain_step_for_each_token() -> None:
    run = play(trace_of(0.8), fixed_choices()["plain"], TIMES)
    assert (run.tokens, run.steps) == (WRITTEN - 1, WRITTEN - 1)
    assert run.pace == pytest.approx(1e3 / TIMES(1))


def test_drafts_that_always_stand_by_hand() -> None:
    # The first step has no chain; then each step emits two drafts and the model's own token.
    run = play(trace_of(1.0), Fixed(2, 2, "last"), TIMES)
    steps = -(-(WRITTEN - 2) // 3)
    assert run.steps == 1 + steps
    assert run.milliseconds == pytest.approx(TIMES(1, 2) + steps * TIMES(3, 2, 2))


@pytest.mark.parametrize("where", ["root", "last", "all", "spare"])
def test_drafts_that_never_stand_emit_one_token_a_step(where: str) -> None:
    run = play(trace_of(0.0), Fixed(2, 3, where), TIMES)
    assert run.tokens == run.steps == WRITTEN - 1


class Scripted:
    """Keeps what it was told, and how much of the chain it saw."""

    def __init__(self, choices: list[Choice]) -> None:
        self.choices, self.seen, self.told = choices, list[tuple[int, int]](), list[Happened]()

    def choose(self, view: View) -> Choice:
        self.seen.append((view.used, view.chain_left))
        return self.choices[min(len(self.seen), len(self.choices)) - 1]

    def observe(self, happened: Happened) -> None:
        self.told.append(happened)


def test_a_chain_is_used_up_by_the_text_and_by_nothing_else() -> None:
    scripted = Scripted([Choice(0, (0,), 5), Choice(1), PLAIN])
    play(trace_of(1.0), scripted, TIMES)
    # Five places; the draft and the token behind it take two, each plain step one.
    assert scripted.seen[:6] == [(0, 0), (0, 5), (2, 3), (3, 2), (4, 1), (0, 0)]


def test_masks_off_the_newest_token_are_passed_by_what_stands() -> None:
    scripted = Scripted([Choice(0, (0,), 8), Choice(3, (0,), 6), PLAIN])
    play(trace_of(1.0), scripted, TIMES)
    assert scripted.seen[2] == (3, 3)
    scripted = Scripted([Choice(0, (0,), 8), Choice(3, (3,), 6), PLAIN])
    play(trace_of(0.0), scripted, TIMES)
    # The rejected draft's masks are lost; the old chain is one token older.
    assert scripted.seen[2] == (1, 7)


def test_a_second_choice_is_a_row_and_may_end_the_path() -> None:
    certain = trace_of(0.0)
    right = replace(certain, second_tokens_AN=trace_of(1.0).first_tokens_AN)
    scripted = Scripted([Choice(0, (0,), 8), Choice(1, seconds=(0,)), PLAIN])
    play(right, scripted, TIMES)
    assert scripted.told[1].emitted == 2
    assert scripted.told[1].milliseconds == pytest.approx(TIMES(3, 0, 1))


def test_scores_are_kept_to_a_few_hundredths_of_log_odds(tmp_path: Path) -> None:
    scores = np.array([0.01, 0.3, 0.9, 0.999])
    kept = probabilities(stored(scores))
    assert [log_odds(each) for each in kept] == pytest.approx([log_odds(each) for each in scores], abs=0.04)
    made = [trace_of(0.5, seed=1, kind="one"), repetitive(2)]
    save(tmp_path / "traces.npz", made)
    again = load(tmp_path / "traces.npz")
    assert [(each.kind, each.name, each.prompt_length) for each in again] == [
        (each.kind, each.name, each.prompt_length) for each in made
    ]
    for one, other in zip(made, again, strict=True):
        assert (one.stood == other.stood).all() and (one.scores == other.scores).all()
        assert (one.second_stood == other.second_stood).all()


def test_what_stands_is_a_run_of_right_drafts() -> None:
    made = trace_of(0.6, seed=3)
    for node, (used, place) in enumerate(zip(USED_N, PLACE_N, strict=True)):
        at = PROMPT + 1 + 10 + place
        is_right = made.first_tokens_AN[10, node] == made.tokens[at]
        stood = made.stood[10, used]
        assert is_right if stood > place - used else place - used > stood or not is_right


def constant(right: float) -> Prior:
    """As learned from texts whose drafts stand with one probability, whatever their scores say."""
    alone, weight = (log_odds(right), 0.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    return Prior(right, (*alone, 0.0), alone, (-5.0, 0.0, 0.0), weight, weight, weight)


def test_worth_where_rows_are_free() -> None:
    # With free rows, masks are renewed in every step and all four drafts run: one token and 0.5 + 0.25 + ...
    worth = solve(constant(0.5), FREE_ROWS)
    assert worth.pace_E == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625, rel=1e-3)


def test_worth_where_nothing_pays() -> None:
    worth = solve(constant(0.05), TIMES)
    assert worth.pace_E == pytest.approx(1 / TIMES(1))
    assert solve(constant(0.9), TIMES).pace_E.min() > 1.3 / TIMES(1)


def test_worth_grows_with_masks_and_falls_with_age() -> None:
    (tokens_UM, *_) = solve(constant(0.8), TIMES).tokens_EUM
    for used in range(LONGEST):
        assert all(more >= fewer - 1e-9 for fewer, more in pairwise(tokens_UM[used, used + 1 :]))
    assert tokens_UM[0, 8] > tokens_UM[1, 8] > tokens_UM[4, 8] > 0


@pytest.mark.parametrize("right", [0.0, 0.5, 0.8, 0.95])
def test_at_a_constant_acceptance_the_controller_is_near_the_optimum(right: float) -> None:
    """The pace of the dynamic programme is the best that any policy has in the long run. Short texts scatter about it,
    and their beginning and end are other than the middle."""
    prior = constant(max(right, 0.01))
    worth = solve(prior, TIMES)
    made = traces_of(right, 24)
    known = Ease(right, weight=1e9)
    runs = [play(each, Expected(prior, worth, TIMES, looks_up=False, ease=known), TIMES) for each in made]
    assert 1e-3 * replay.total(runs).pace == pytest.approx(worth.at(right)[1], rel=0.06)
    fixed = max(replay.total([play(each, way, TIMES) for each in made]).pace for way in fixed_choices().values())
    assert replay.total(runs).pace > 0.99 * fixed


def test_the_prior_finds_what_the_traces_were_made_with() -> None:
    learned = learn([trace_of(right, seed=seed) for seed in range(8) for right in (0.3, 0.8)])
    assert learned.of_score(0.8, 0.8, 0, 0) == pytest.approx(0.8, abs=0.05)
    assert learned.of_score(0.3, 0.3, 2, 1) == pytest.approx(0.3, abs=0.07)
    assert learned.of_place(0.8, 0, 0) == pytest.approx(0.8, abs=0.07)


def test_a_text_whose_drafts_never_stand_rests() -> None:
    # Learned where the same scores meant more in some texts than in others.
    prior = learn([trace_of(right, seed=seed, score=0.7) for seed in range(4) for right in (0.1, 0.4, 0.7, 0.9)])
    hopeless = trace_of(0.0, score=0.7)
    controller = Expected(prior, solve(prior, TIMES), TIMES)
    play(hopeless, controller, TIMES)
    run = play(hopeless, controller, TIMES)  # by now it knows
    assert run.plain_steps > 0.8 * run.steps
    assert run.masks > 0


def test_a_text_that_is_easier_than_its_prior_is_found_out() -> None:
    """By the prior nothing pays, so masks are there only for looking."""
    learned = learn([trace_of(right, seed=seed, score=0.7) for seed in range(4) for right in (0.1, 0.4, 0.7, 0.9)])
    prior, worth = replace(learned, ease=0.2), solve(learned, TIMES)
    assert worth.at(prior.ease)[1] < 1.01 / TIMES(1)
    easy, hard = (trace_of(right, seed=9, score=0.7) for right in (0.95, 0.0))
    fast, slow = (play(each, Expected(prior, worth, TIMES), TIMES) for each in (easy, hard))
    assert fast.pace > 1.2e3 / TIMES(1)
    assert 0 < slow.masks <= 2 * LOOK_MASKS


def test_look_up_writes_a_repetitive_text_without_masks() -> None:
    prior = learn([*traces_of(0.7), repetitive(1), repetitive(2)])
    run = play(repetitive(), Expected(prior, solve(prior, TIMES), TIMES), TIMES)
    assert run.tokens / run.steps > 4
    assert run.masks < 2 * run.steps


@pytest.fixture(scope="module")
def played() -> tuple[list[Trace], dict[str, replay.Runs]]:
    traces = [
        trace_of(0.85, seed=1, kind="easy"),
        trace_of(0.2, seed=2, kind="hard"),
        repetitive(3),
        trace_of(0.6, seed=4),
    ]
    return traces, replay.ways(traces, TIMES)


def test_nothing_is_faster_than_the_oracle(played: tuple[list[Trace], dict[str, replay.Runs]]) -> None:
    traces, found = played
    assert {f"host without {name}" for name in ABLATIONS} <= set(found)
    for way, runs in found.items():
        for trace, run, bound in zip(traces, runs, found["oracle"], strict=True):
            assert run.tokens == trace.written - 1, way
            assert run.pace <= bound.pace * (1 + 1e-9), (way, trace.name)
    for run, bound in zip(found["expected, masks alone"], found["oracle, masks alone"], strict=True):
        assert run.pace <= bound.pace * (1 + 1e-9)


def test_the_same_traces_and_times_give_the_same_figures(played: tuple[list[Trace], dict[str, replay.Runs]]) -> None:
    traces, found = played
    assert replay.figures(traces, replay.ways(traces, TIMES)) == replay.figures(traces, found)


def test_the_table_has_a_column_for_each_kind(played: tuple[list[Trace], dict[str, replay.Runs]]) -> None:
    shown = replay.figures(*played)
    assert set(shown["host"]["tokens_per_second"]) == {"easy", "hard", "made up", "all"}
    lines = replay.speed_ups(shown).splitlines()
    assert lines[2].startswith("| plain, tokens/s | 476 | 476 | 476 | 476 |")
    assert len(lines) == 2 + len(shown)


def test_controllers_earn_their_place_where_the_curve_is_wrong_or_a_drafter_dear() -> None:
    found = circumstances.measure([trace_of(0.5, seed=seed) for seed in range(4)], TIMES)
    dear, asked = found["rows cost 3 x the curve's"], found["a second drafter of 3 ms"]
    assert dear[""] > dear["Clock"] and dear["Clock"] < 1
    assert asked[""] > 1.2 * asked["Use"] and asked["look-up"] >= asked[""]
    assert {name for by in found.values() for name in by} == {"", *ABLATIONS}


def test_the_oracle_by_hand() -> None:
    # Where all stands and rows are free: a step for the first masks, then nine tokens each.
    steps = 1 + -(-(WRITTEN - 2) // (LONGEST + 1))
    assert least_milliseconds(trace_of(1.0), FREE_ROWS) == pytest.approx(steps)
    assert least_milliseconds(trace_of(0.0), TIMES) == pytest.approx((WRITTEN - 1) * TIMES(1))


def test_todays_policy_takes_what_pays_and_leaves_what_does_not() -> None:
    easy, hard = (play_all(traces_of(right), TIMES) for right in (0.95, 0.0))
    plain = 1e3 / TIMES(1)
    assert replay.total(easy).pace > 1.4 * plain
    assert 0.7 * plain < replay.total(hard).pace < plain


def test_a_loop_is_cut_off() -> None:
    made = trace_of(0.5)
    tokens = made.tokens.copy()
    tokens[PROMPT + 20 :] = 7
    cut = replay.without_loop(replace(made, tokens=tokens))
    assert cut.written == 20
    assert cut.stood.shape == (20, LONGEST)


def test_times_of_masks_are_fitted_to_what_real_rows_do_not_explain() -> None:
    times = of_forwards({"1": 2.0, "4": 3.5, "8": 5.5, "1+2": 3.5, "4+3": 5.6, "1+4": 4.7}, around=0.1, level=0.1)
    assert (times.masks, times.mask_row) == pytest.approx((0.3, 0.1))
    assert times.forward(1, 4) == pytest.approx(4.7)
    assert times(2, 0, levels=3) == pytest.approx(2.5 + 0.1 + 0.3)
    assert times.cost(3, 2) == pytest.approx(1e-3 * times.forward(3, 2))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_recorded_chains_are_those_that_decoding_drafts(temperature: float) -> None:
    """On the built-in model: along each tree that the decoder `self` verifies, the recorded choices."""
    skip_without_kernels()
    model = load_model("smollm2", settings=LoadSettings(backend="native"))
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=0)
    (prompt, *_) = prompts()
    recorded = Recorder(model, params).record(prompt)
    sequence = model.sequence(model.encode(prompt.asked), params, model.check("self"))
    sequence.is_traced = True
    anchor, compared = None, 0
    for stride in model.engine.strides_of(sequence):
        assert stride.trace is not None
        block, newest = stride.trace.block, stride.trace.block.start + stride.trace.block.pending - 1
        node, place = ROOT, 0 if anchor is None else newest - anchor - 1
        while anchor is not None and (drafted := proposals(block.tree, node)):
            of_anchor = anchor - recorded.first_anchor, newest - anchor - 1, place
            first, second = int(recorded.first_tokens[of_anchor]), int(recorded.second_tokens[of_anchor])
            assert first in drafted or second in drafted
            compared, place = compared + 1, place + 1
            if (child := block.tree.child(node, first)) is None:
                break
            node = child
        path = [ROOT, *(kept - block.pending for kept in stride.trace.kept[block.pending :])]
        nearest = [at for at, each in enumerate(path) if each in block.mask_anchors]
        anchor = newest + nearest[-1] if nearest else anchor
    assert sequence.tokens == recorded.tokens.tolist()
    assert compared > 4


def test_the_packages_prior_was_learned_from_other_prompts_and_does_as_well() -> None:
    """As one that was learned from the other half of the prompts that are measured."""
    traces, times = load(replay.TRACES), load_times(replay.TIMES, "int8")
    prior = Prior(**asdict(draft_priors()[0]))
    worth = solve(prior, times)
    shipped = [play(trace, Expected(prior, worth, times), times) for trace in traces]
    known = replay.held_out(traces, times, Expected)
    assert replay.total(shipped).pace > 0.97 * replay.total(known).pace


def test_the_shipped_adapter_brings_the_packages_prior_of_masks() -> None:
    shipped, adapter = (json.loads(file.read_text(encoding="utf-8")) for file in (FILE, ADAPTER))
    for kind, masks in adapter["draft_prior"].items():
        assert masks and masks == {name: shipped[kind][name] for name in masks}
    assert shipped["sampled"]["ease"] < shipped["greedy"]["ease"]


def test_steps_of_a_fixed_shape_by_hand() -> None:
    # Masks hang off every row: but for the last tokens of a text, three stand and the model's own comes behind them.
    steps = -(-(WRITTEN - 1) // 4)
    found = written(traces_of(1.0), FixedLength({0: 1.0, 3: 2.0}, 3), users=2)
    assert found == pytest.approx(2 * 2 * (WRITTEN - 1) / (2 * steps * 2.0))


@pytest.mark.parametrize("right", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("users", [1, 4])
def test_the_number_of_drafts_is_near_the_best(right: float, users: int) -> None:
    # Texts of sixty tokens, of which nothing is known beforehand but how texts mostly are.
    times, traces = {0: 1.0, 2: 1.3, 4: 1.5, 7: 2.0}, traces_of(right, count=12)
    best = max(written(traces, FixedLength(times, drafts), users) for drafts in times)
    assert written(traces, ChainLength(times), users) > 0.85 * best


def test_steps_of_more_rows_than_were_measured_are_left_out() -> None:
    figures = {"forward": {"1": {"median": 1.0}}, "forward_with_masks": {"8": {"median": 2.0}, "40": {"median": 4.0}}}
    assert step_times(figures, users=1) == pytest.approx({0: 1.01, 2: 2.0725, 4: 3.0725})
    assert set(step_times(figures, users=4)) == {0, 2}
