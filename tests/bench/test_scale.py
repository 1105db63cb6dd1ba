"""The estimates for large models: formulas against cases worked out by hand, and what the documents show of them."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from bench.scale import project as scale
from bench.scale import shapes as scale_shapes
from bench.scale import step_cost as step_cost_h200
from bench.scale.step_cost import LARGE, MIDDLE, SMALL, Shape
from bench.scale.steps import (
    ALTERNATING,
    FUSED,
    PLAIN,
    Acceptance,
    Curve,
    Layout,
    Links,
    Plan,
    Setting,
    StepCosts,
    best,
)

ROOT = Path(__file__).parent.parent.parent
TINY = Shape("tiny", layers=2, hidden=4, inner=8, heads=2, kv_heads=1, head_size=2, vocabulary=10)
HALVES = Acceptance("halves", (0.5, 0.5), 1.75)
MATHS = Acceptance("maths", (0.8,) * 8, 1 + sum(0.8**depth for depth in range(1, 9)))


def made_up(groups: list[dict[str, Any]]) -> dict[str, Any]:
    return {"groups": groups}


def group(name: str, of: int, layers: int, times: dict[tuple[int, int], float], rank: int = 0) -> dict[str, Any]:
    """Times by (batch, rows), at a context of 2,048."""
    points = [
        {"batch": batch, "rows": rows, "context": 2048, "milliseconds": time} for (batch, rows), time in times.items()
    ]
    shape = {"name": name, "layers": of, "tensor_parallel": 1}
    return {"shape": shape, "layers": layers, "rank": rank, "points": points}


# What models weigh.


def test_parameters_are_those_of_the_published_models() -> None:
    assert scale_shapes.parameters(MIDDLE) == 8_030_261_248
    assert scale_shapes.parameters(LARGE) == 70_553_706_496
    assert scale_shapes.parameters(SMALL, tied=True) == 134_515_008


def test_a_tiny_model_by_hand() -> None:
    # q 4x4, k and v 4x2, o 4x4, gate and up 4x8, down 8x4: 144 a layer; output matrix 40; norms 4 x 5.
    assert scale_shapes.multiplied(TINY) == 2 * 144 + 40
    assert scale_shapes.parameters(TINY) == 2 * 144 + 40 + 40 + 20
    assert scale_shapes.kv_bytes(TINY) == 2 * 2 * 1 * 2 * 2
    # Inputs and outputs of the seven: 8 + 6 + 6 + 8 + 12 + 12 + 12 = 64.
    assert scale_shapes.adapter_parameters(TINY, rank=3, masks=2, sequential_size=0) == 2 * 3 * 64 + 2 * 4
    recipe = scale_shapes.Recipe(texts=2, length=10, anchors=3, k=3, rank=3, sequential_size=0)
    assert (recipe.real_rows, recipe.mask_rows) == (20, 12)
    assert scale_shapes.training_operations(TINY, recipe) == 328 * (2 * 20 + 4 * 12) + 6 * 392 * 12
    assert scale_shapes.adapter_training_bytes(TINY, recipe, 2.0) == 2 * 388 + 16 * 392 + 2.0 * 12 * 2 * 64


def test_the_size_of_an_adapter_is_that_of_the_shipped_one() -> None:
    folder = ROOT / "src" / "stridelm" / "adapters" / "smollm2"
    about = json.loads((folder / "adapter.json").read_text())
    held = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as tensors:
            held += sum(int(np.prod(tensors.get_slice(name).get_shape())) for name in tensors.keys())  # noqa: SIM118
    assert scale_shapes.adapter_parameters(SMALL, about["rank"], about["masks"], about["sequential_size"]) == held


def test_a_rank_of_tensor_parallel_holds_its_part() -> None:
    parts = scale_shapes.multiplied(replace(LARGE.shard(8)))
    assert parts * 8 == scale_shapes.multiplied(LARGE)


# What a step costs.


def test_layers_are_extrapolated() -> None:
    costs = StepCosts(made_up([group("m", 10, 2, {(1, 1): 3.0}), group("m", 10, 4, {(1, 1): 5.0})]))
    assert costs.curve("m", 1, 1, 2048)(1) == pytest.approx(11.0)  # a layer 1, the rest 1


def test_noise_does_not_make_the_rest_of_a_model_negative() -> None:
    costs = StepCosts(made_up([group("m", 10, 2, {(1, 1): 1.0}), group("m", 10, 4, {(1, 1): 4.0})]))
    assert costs.curve("m", 1, 1, 2048)(1) == pytest.approx(10.0)


def test_curves_are_straight_between_points_and_rows_may_be_added() -> None:
    curve = Curve({1: 2.0, 4: 5.0, 5: 4.0, 9: 9.0})
    assert [curve(rows) for rows in (1, 2.5, 4, 5, 7, 9)] == [2.0, 3.0, 4.0, 4.0, 6.5, 9.0]
    with pytest.raises(AssertionError):
        curve(10)


def test_the_adapter_adds_what_was_measured() -> None:
    whole = {(1, 1): 10.0, (1, 4): 12.0, (8, 1): 20.0, (8, 4): 24.0}
    with_it = group("m", 2, 2, {(1, 4): 15.0, (8, 4): 30.0}, rank=64)
    shard = group("m", 2, 2, {(8, 1): 10.0, (8, 4): 12.0})
    shard["shape"] |= {"tensor_parallel": 2}
    few, many = group("other", 4, 1, {(8, 1): 5.0, (8, 4): 10.0}), group("other", 4, 2, {(8, 1): 10.0, (8, 4): 20.0})
    costs = StepCosts(made_up([group("m", 2, 2, whole), with_it, shard, few, many]))
    assert costs.curve("m", 1, 1, 2048, adapted=True)(4) == pytest.approx(15.0)
    assert costs.curve("m", 1, 8, 2048, adapted=True)(4) == pytest.approx(30.0)
    assert costs.curve("m", 1, 8, 2048, adapted=True)(1) == pytest.approx(20.0), "one row is not a mask"
    # Of the 6 that it adds for 8 x 4 rows, 3 are paid by one sequence already; two ranks share the other 3.
    assert costs.curve("m", 2, 8, 2048, adapted=True)(4) == pytest.approx(12.0 + 3.0 + 1.5)
    assert costs.curve("other", 1, 8, 2048, adapted=True)(4) == pytest.approx(40.0 * 1.25), "as another's share"


def test_communication_by_hand() -> None:
    links = Links(node_bytes_per_second=1e9, node_latency=1e-3, network_bytes_per_second=1e8, network_latency=2e-3)
    # Two all-reduces in each of 3 layers: 2 x 1/2 x (10 rows x 1,000 x 2 bytes) at 1 GB/s + 1 ms; logits 1/2 x 10 x
    # 5,000 x 2 bytes; a hop of 20,000 bytes at 100 MB/s + 2 ms.
    assert Layout(2).communication(10, 3, 1000, 5000, links) == pytest.approx(6 * (0.02 + 1.0) + 0.05)
    assert Layout(1, 3).communication(10, 3, 1000, 5000, links) == pytest.approx(2 * (0.2 + 2.0))
    assert Layout().communication(10, 3, 1000, 5000, links) == 0.0


# What comes out of it.


def test_tokens_of_a_step() -> None:
    assert [HALVES.tokens(drafts) for drafts in (0, 1, 2)] == [1.0, 1.5, 1.75]
    lower = replace(HALVES, measured=1.375)  # half of what is beyond the first token
    assert [lower.tokens(drafts) for drafts in (0, 1, 2)] == [1.0, 1.25, 1.375]


def test_plans_by_hand() -> None:
    setting = Setting(Curve({1: 10.0, 9: 18.0}), Curve({1: 10.0, 9: 26.0}), head_milliseconds=1.0)
    plans = list(setting.exact(HALVES))
    assert plans == [
        Plan(PLAIN, 0, 1, 1.0, 10.0),
        Plan(FUSED, 1, 4, 1.5, 16.0 + 1.0),
        Plan(ALTERNATING, 1, 2, 2.5, 12.0 + 11.0 + 1.0),
        Plan(FUSED, 2, 9, 1.75, 26.0 + 2.0),
        Plan(ALTERNATING, 2, 3, 2.75, 14.0 + 12.0 + 2.0),
    ]
    assert best(plans).way == ALTERNATING and best(plans).drafts == 1
    assert plans[0].pace == 100.0
    # In vLLM the same drafts are verified with one row more.
    plugin = list(setting.plugin(HALVES))
    assert plugin == [Plan("plugin", 2, 3, 2.5, 12.0 + 12.0 + 1.0), Plan("plugin", 3, 4, 2.75, 14.0 + 13.0 + 2.0)]
    # A whole conversion drafts the same tokens, without a head, and runs the rows just verified a second time: with two
    # drafts t, d, d for its cache, then the new token and a mask.
    draft = list(setting.two_models(HALVES))
    assert draft == [Plan("two models", 2, 5, 2.5, 14.0 + 12.0), Plan("two models", 3, 7, 2.75, 16.0 + 13.0)]
    assert [plan.tokens for plan in draft] == [plan.tokens for plan in plugin], "the first draft is always right"


def test_free_rows_are_all_used_and_dear_ones_not_at_all() -> None:
    free, dear = Curve({1: 10.0, 81: 10.0}), Curve({1: 10.0, 2: 20.0, 81: 810.0})
    assert best(list(Setting(free, free).exact(MATHS))).rows == 81
    assert best(list(Setting(dear, dear).exact(HALVES))).way == PLAIN
    assert best(list(Setting(free, free, most_drafts=3).exact(MATHS))).rows == 16


def test_never_below_plain_and_never_better_for_worse_drafts_or_dearer_rows() -> None:
    chance = np.random.default_rng(0)
    for _ in range(200):
        rows = (1, 2, 4, 9, 16, 25, 64, 81)
        further = chance.exponential(5.0, len(rows)) * (chance.random(len(rows)) < 0.7) + 0.1
        times: dict[int, float] = dict(zip(rows, np.cumsum(further).tolist(), strict=True))
        rates = tuple(chance.uniform(0.05, 0.99, 8))
        expected = 1 + float(np.cumprod(rates).sum())
        good, poor = Acceptance("good", rates, expected), Acceptance("poor", rates, 1 + 0.6 * (expected - 1))
        cheap = Setting(Curve(times), Curve(times), 0.05)
        dearer = Curve({row: time + 0.3 * (row - 1) for row, time in times.items()})
        costly = Setting(dearer, dearer, 0.05)
        paces = [best(list(each.exact(of))).pace for each, of in ((cheap, good), (cheap, poor), (costly, good))]
        assert min(paces) >= cheap.plain().pace * (1 - 1e-12)
        assert paces[0] >= max(paces[1:])


def test_the_cost_of_a_million_tokens() -> None:
    estimate = scale.Estimate(StepCosts(made_up([])), [MATHS], MATHS, scale.Inputs(price=3.6))
    assert estimate.dollars(1000.0, gpus=1) == pytest.approx(1.0)
    assert estimate.dollars(1000.0, gpus=8) == pytest.approx(8.0)


def test_what_fits() -> None:
    estimate = scale.Estimate(StepCosts(made_up([])), [MATHS], MATHS, scale.Inputs())
    assert estimate.room(LARGE, Layout(), 2048) == 0, "70B does not fit one GPU"
    rooms = [estimate.room(LARGE, Layout(ranks), 2048) for ranks in (2, 4, 8)]
    assert 0 < rooms[0] < rooms[1] < rooms[2]
    assert estimate.room(MIDDLE, Layout(), 512) > estimate.room(MIDDLE, Layout(), 2048)


# What is written of it.


def test_the_report_is_that_of_the_measured_steps() -> None:
    report = scale.report(scale.read(scale.RESULTS / "step_cost_h200.json"), scale.Inputs())
    assert json.loads(json.dumps(report)) == scale.read(scale.RESULTS / "scale.json"), "run bench/scale/project.py"
    assert report["projection"] and report["step_costs"]["steady_points"] <= report["step_costs"]["points"]
    for model in report["models"].values():
        assert model["serving"]
        for entry in model["serving"]:
            plain = entry["plain"]
            for exact in entry["exact"].values():
                assert exact["over_plain"] >= 1
                assert exact["dollars_per_million_tokens"] <= plain["dollars_per_million_tokens"]
            if entry["plugin"]:  # as docs/scale.md advises
                assert entry["plugin"]["maths"]["over_plain"] > entry["two_models"]["over_plain"]


# The measurement itself, on a CPU.


def test_steps_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    step_cost_h200.run(argparse.Namespace(smoke=True, seconds=60.0, replays=2, json=out))
    content = json.loads(out.read_text())
    assert content["complete"] and not content["communication"]
    points = [point for each in content["groups"] for point in each["points"]]
    assert len(points) == 16 and all(0 < point["low"] <= point["milliseconds"] <= point["high"] for point in points)
    assert StepCosts(content).curve("tiny", 1, 2, 16, adapted=True)(3) > 0


def test_what_no_time_is_left_for_is_named(tmp_path: Path) -> None:
    content = step_cost_h200.run(argparse.Namespace(smoke=True, seconds=-1.0, replays=2, json=tmp_path / "costs.json"))
    assert not content["complete"] and len(content["left_out"]) == 4 and not content["groups"]


def test_every_attention_gives_the_same_tokens_and_rows_do_not_see_later_ones() -> None:
    (first, *_) = step_cost_h200.groups(smoke=True)
    decoder = step_cost_h200.Decoder(first, "cpu")
    for rows in (1, 3):
        tokens = []
        for attention in step_cost_h200.attentions(rows).values():
            torch.manual_seed(1)  # the same ids
            tokens.append(decoder.step(2, rows, 16, attention)())
        assert all(torch.equal(tokens[0], each) for each in tokens)
    mask = decoder.mask(3, 16, 2)
    assert mask.shape == (6, 19)
    seen = mask[:3] == 0
    assert seen[:, :16].all() and torch.equal(seen[:, 16:], torch.ones(3, 3).tril().bool())
    assert torch.equal(mask[:3], mask[3:]), "the rows of every head"
