"""The frontier and domain adaptation on tiny random models; answers side by side against the serving engine's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridelm
from bench.frontier import points as points_module
from bench.frontier.adaptation import adaptation
from bench.frontier.answering import Answered, EngineAnswering
from bench.frontier.mask_rollout import MaskRollout
from bench.frontier.measure import measure
from bench.frontier.plots import adaptation as adaptation_plot
from bench.frontier.points import PUBLISHED, FrontierSettings, frontier, joined, paired_change, points, wilson
from bench.frontier.task import Problem, problems
from stridelm import DecodeSettings, InputError, LoadSettings
from stridelm.models.adapter import save_adapter
from stridelm.models.encode import encode_prompt
from stridelm.models.mask_token import MASKS_KEY
from stridelm.models.preview import MASK_KEY
from stridelm.prompts import PromptLine
from stridelm.settings import NO_ADAPTER, PLAIN
from stridelm.train.acceptance import Measure, total
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import MaskReader
from tiny import load_tiny, random_adapter, save_tiny

PROMPTS = ["abcabcabd abc", "The quick brown fox jumps", "x", "1 2 3 4", "hello", "why so?", "z" * 50]
LOAD = LoadSettings(device="cpu", cache_tokens=8192)
SMALL = FrontierSettings(tolerances=(0.5,), thresholds=(0.1,), static=(2, 9), max_tokens=24, batch=3)
TOKENS = 40


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model and two adapters for it, and a model that stands alone."""
    folder = tmp_path_factory.mktemp("frontier")
    changes: dict[str, Any] = {"initializer_range": 0.8, "max_position_embeddings": 1024}
    masks: dict[str, Any] = {MASK_KEY: 259, MASKS_KEY: 3}
    base = save_tiny(folder / "base", **changes)
    for name, size in (("adapter", 8), ("headless", 0)):
        save_adapter(folder / name, random_adapter(load_tiny(base), sequential_size=size))
    alone = save_tiny(folder / "alone", **changes | masks)
    return {"base": base, "adapter": folder / "adapter", "headless": folder / "headless", "alone": alone}


Load = Callable[[str], tuple[EngineAnswering, MaskRollout]]


@pytest.fixture(scope="module")
def both(places: dict[str, Path]) -> Load:
    """The same conversion, answered by the engine and side by side."""

    def load(name: str) -> tuple[EngineAnswering, MaskRollout]:
        model, adapter = (places["alone"], None) if name == "alone" else (places["base"], places[name])
        engine = EngineAnswering(stridelm.load(str(model), adapter=adapter, settings=LOAD), 4)
        return engine, MaskRollout.load(str(model), adapter, LOAD, 5)

    return load


UNVERIFIED = [
    *(DecodeSettings("adaptive", k_max=4, threshold=threshold) for threshold in (0.0, 0.2, 0.6)),
    *(DecodeSettings("static", k=k) for k in (2, 4)),
]


@pytest.mark.parametrize("name", ["adapter", "headless", "alone"])
def test_side_by_side_is_what_the_engine_writes(name: str, both: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    # The engine moves its candidates only; here all tokens are.
    monkeypatch.setattr("stridelm.draft.block.UNVERIFIED_CANDIDATES", 10**6)
    engine, many = both(name)
    for settings in [DecodeSettings(PLAIN), *UNVERIFIED]:
        assert many(PROMPTS, settings, TOKENS) == engine(PROMPTS, settings, TOKENS), settings


@pytest.mark.parametrize("name", ["adapter", "alone"])
def test_verified_side_by_side_is_plain_and_takes_the_walk_of_acceptance(name: str, both: Load) -> None:
    _, many = both(name)
    plain = many(PROMPTS, DecodeSettings(PLAIN), TOKENS)
    exact = many(PROMPTS, DecodeSettings("self"), TOKENS)
    assert [each.tokens for each in exact] == [each.tokens for each in plain]
    assert [each.forwards for each in plain] == [len(each.tokens) for each in plain]
    texts: list[Text] = []
    for prompt, answer in zip(PROMPTS, plain, strict=True):
        tokens = encode_prompt(many.checkpoint, prompt)
        texts.append(Text(np.array([*tokens, *answer.tokens]), len(tokens)))
    tally = total(each for _, each in Measure(MaskReader(many.network, many.student))(texts))
    assert sum(each.forwards for each in exact) == tally.forwards < tally.tokens


def test_tolerance_writes_other_text_in_fewer_forwards(both: Load) -> None:
    _, many = both("adapter")
    exact, tolerant = (many(PROMPTS, DecodeSettings("self", tolerance=each), TOKENS) for each in (0.0, 0.99))
    assert [each.tokens for each in tolerant] != [each.tokens for each in exact]
    assert sum(each.forwards for each in tolerant) < sum(each.forwards for each in exact)


def test_what_cannot_be_done_side_by_side_is_refused(both: Load, places: dict[str, Path]) -> None:
    _, many = both("adapter")
    with pytest.raises(InputError, match="ngram"):
        many(PROMPTS, DecodeSettings("ngram"), 8)
    with pytest.raises(InputError, match="ask for fewer"):
        many(PROMPTS, DecodeSettings(PLAIN), 2000)
    without = MaskRollout.load(str(places["base"]), NO_ADAPTER, LOAD, 4)
    with pytest.raises(InputError, match="has no masks"):
        next(points("bare", without, problems(0, 2, "test"), SMALL))


def test_frontier_has_its_shape_and_exact_points_are_identical(both: Load) -> None:
    engine, _ = both("adapter")
    _, alone = both("alone")
    told: list[dict[str, Any]] = []
    tested = problems(0, 4, "test")
    found = frontier({"gated": engine.model, "full": alone}, tested, SMALL, told.append)
    assert found["points"] == told
    assert [(each["conversion"], each["decoder"], each["setting"]) for each in told] == [
        (conversion, *point)
        for conversion in ("gated", "full")
        for point in (
            (PLAIN, ""),
            ("self", ""),
            ("adaptive", "threshold 0.1"),
            ("self", "tolerance 0.5"),
            ("static", "k 2"),  # k 9 is more than these masks were trained for
        )
    ]
    for point in told:
        assert point["exact"] == (point["setting"] == "")
        assert not point["exact"] or (point["identical"], point["change"]) == (1.0, 0.0)
        assert 0 <= point["low"] <= point["accuracy"] <= point["high"] <= 1
        assert point["tokens_per_second"] > 0
        assert sum(of for _, of in point["by_steps"].values()) == len(tested)
    static = [each for each in told if each["decoder"] == "static"]
    assert all(each["tokens_per_forward"] == pytest.approx(2, abs=0.1) for each in static)
    assert found["published"] == list(PUBLISHED)
    assert found["baseline"] == {"problems": 4, "conversion": "gated", "accuracy": 0.0, "low": 0.0, "high": 0.4899}


class Clerk:
    """Answers rightly one token at a time, and every second problem otherwise."""

    k, is_exact = 4, True

    def __init__(self, told: list[Problem]) -> None:
        self.told, self.asked = told, list[DecodeSettings]()

    def __call__(self, prompts: list[str], settings: DecodeSettings, max_tokens: int) -> list[Answered]:
        assert prompts == [each.prompt for each in self.told]
        self.asked.append(settings)
        lossy = settings.decoder == "static"
        return [
            Answered((1, 2, 3, number if lossy else 0), "Answer: 0" if lossy and number % 2 else problem.answer, 2)
            for number, problem in enumerate(self.told)
        ]


def test_accuracy_and_its_change_are_counted() -> None:
    told = problems(5, 40, "test")
    clerk = Clerk(told)
    found = list(points("clerk", clerk, told, SMALL))
    plain, *_, static = found
    assert (plain["accuracy"], plain["tokens_per_forward"], plain["change"]) == (1.0, 2.0, 0.0)
    assert (static["accuracy"], static["change"], static["identical"]) == (0.5, -50.0, 1 / 40)
    assert (static["low"], static["high"]) == (0.352, 0.648)
    assert joined(found, 40)["baseline"]["accuracy"] == 1.0
    # Those that were measured before are left out; plain answers are needed again, to compare with.
    clerk.asked.clear()
    rest = list(points("clerk", clerk, told, SMALL, {each["key"] for each in found[:-1]}))
    assert [each["key"] for each in rest] == ["clerk: static k 2"]
    assert [each.decoder for each in clerk.asked] == [PLAIN, "static"]


def test_wilson_interval_has_its_known_values() -> None:
    # Brown, Cai and DasGupta 2001; and R's prop.test(..., correct = FALSE).
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_paired_change_counts_only_what_came_out_otherwise() -> None:
    before, after = [True] * 90 + [False] * 10, [True] * 84 + [False] * 6 + [True] * 2 + [False] * 8
    change, low, high = paired_change(before, after)
    assert change == pytest.approx(-0.04)
    # Six lost and two won of a hundred: a standard error of sqrt(8 - 16 / 100) / 100.
    assert (low, high) == pytest.approx((-0.04 - 0.05488, -0.04 + 0.05488), abs=1e-4)
    assert paired_change(before, before) == (0, 0, 0)


def test_adaptation_tells_before_and_after_by_domain(places: dict[str, Path]) -> None:
    domains = {name: [PromptLine("here", prompt) for prompt in part] for name, part in
               (("tickets", PROMPTS[:3]), ("maths", PROMPTS[3:]))}  # fmt: skip
    settings: dict[str, Any] = {"settings": LOAD, "max_tokens": 24}
    model, adapter, headless = (str(places[name]) for name in ("base", "adapter", "headless"))
    said: list[str] = []
    found = adaptation(
        model, adapter, headless, domains, "tickets", others={"other": adapter}, progress=said.append, **settings
    )
    assert [(each["domain"], each["trained_on"], each["prompts"]) for each in found["domains"]] == [
        ("tickets", True, 3),
        ("maths", False, 4),
    ]
    assert all(each["before"] == each["other"] >= 1 for each in found["domains"])
    assert len(said) == 6
    again = adaptation(model, headless, adapter, domains, "maths", **settings)
    for one, other in zip(found["domains"], again["domains"], strict=True):
        assert (one["before"], one["after"]) == (other["after"], other["before"])
    with pytest.raises(InputError, match="no domain 'sql'"):
        adaptation(model, adapter, headless, domains, "sql", **settings)


def test_a_script_measures_and_draws_conversions(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(points_module, "FrontierSettings", lambda: SMALL)
    measure(tmp_path, str(places["base"]), places["adapter"], problems=1, load=LOAD)
    found = json.loads((tmp_path / "frontier.json").read_text())
    assert {point["decoder"] for point in found["frontier"]["points"]} == {PLAIN, "self", "adaptive", "static"}
    assert found["machine"]["machine"]["cores"] >= 1
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="--gated"):
        measure(tmp_path)


def test_adaptation_is_drawn_from_before_to_after() -> None:
    pytest.importorskip("matplotlib")
    domains = [("maths", 2.1, 2.9, True), ("code", 2.5, 2.45, False)]
    names = ("domain", "before", "after", "trained_on")
    (axes,) = adaptation_plot({"domains": [dict(zip(names, each, strict=True)) for each in domains]}).axes
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines] == [[2.1, 2.9], [2.5, 2.45]]
