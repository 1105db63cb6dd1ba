"""bench/gpu/run.py on tiny models, its kernels in Triton's interpreter: that every part runs and counts rightly. Its
times mean something on a GPU alone."""

import itertools
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="there is no Triton here: the dev extra brings it")

import torch

from bench.gpu import answers as gpu_answers
from bench.gpu import arrivals as gpu_arrivals
from bench.gpu import attention as gpu_attention
from bench.gpu import large as gpu_large
from bench.gpu import rollouts as gpu_rollouts
from bench.gpu import run as gpu
from bench.gpu import steps as gpu_steps
from bench.gpu import subject as gpu_subject
from bench.gpu import tables as gpu_tables
from bench.gpu import timing as gpu_timing
from bench.gpu import users as gpu_users
from bench.gpu.answers import PEER, Timed
from bench.gpu.subject import SMOKE, Sizes, Subject
from bench.scale.step_cost import MIDDLE, Shape
from hash_stepper import Device, Drafting, SteppingForward
from hashing_model import CONTEXT, END, letters
from interpreted import DEVICE
from stridelm.api import LanguageModel
from stridelm.backends.gpu.weights import stack
from stridelm.backends.network import loaded_model
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.contracts import Policy
from stridelm.decode.autoregressive import Autoregressive
from stridelm.engine.engine import Engine
from stridelm.layout import lay_out, lineage, make_block
from stridelm.params import SamplingParams
from stridelm.settings import PLAIN, LoadSettings
from stridelm.types import ROOT, DraftTree, Sequence
from tiny import load_tiny, plain_network, random_adapter

TINY = Shape("tiny", layers=1, hidden=32, inner=48, heads=4, kv_heads=2, head_size=8, vocabulary=64)
SIZES = replace(
    SMOKE, prompts=1, tokens=5, warm_up=0, peer_tokens=4, context=20, rows=(1, 64), drafts=(0, 2), replays=1, times=1,
    users=(2,), user_tokens=6, rollouts=3, rollout_tokens=4, exact_prompts=2, large=TINY, large_rows=(1, 64),
)  # fmt: skip
VERSIONS = ("torch", "transformers", "triton")
PROMPTS = {"maths": ["1+1"], "general": ["why"]}
CHAIN = ((3, 4), (3, 1), (0, 1), (3, 2))
"""Strides: drafts held, tokens given."""


@pytest.fixture
def subject(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A tiny Llama with a random adapter on the GPU backend."""
    monkeypatch.setattr("stridelm.backends.common.step_seconds._TRIALS", 1)
    monkeypatch.setattr("bench.gpu.steps._IN_A_GRAPH", 1)
    folder = tiny_folder("llama", num_hidden_layers=1)
    adapter = random_adapter(load_tiny(folder), masks=2)
    settings = LoadSettings(device=DEVICE, dtype="float32", cache_tokens=1024)
    checkpoint = load_checkpoint(str(folder), settings, trainable=True)
    weights = stack(checkpoint.network, adapter)
    loaded = loaded_model(checkpoint, settings, gate=TorchGate(checkpoint.network, adapter), weights=weights)
    return Subject(str(folder), settings, SIZES, model=LanguageModel(loaded, settings), prompts=PROMPTS)


def last(figures: Any) -> dict[str, Any]:
    *_, final = figures
    return final


# Every part, on a tiny model.


@pytest.mark.slow
def test_decode_times_all_ways_and_finds_the_same_text(subject: Subject) -> None:
    figures = last(gpu_answers.decode(subject))
    assert list(figures["groups"]) == ["maths", "general"]
    for ways in figures["groups"].values():
        assert ways["answers"] == 1
        for way in (PLAIN, "self", "auto"):
            assert ways[way]["identical_tokens"] == ways[way]["all_tokens"] > 0
            assert ways[way]["over_transformers"]["count"] == 1
        assert ways[PLAIN]["tokens_per_forward"] == 1.0
        # In float32 it says what we say.
        assert ways[PEER]["same_first_tokens"] == SIZES.peer_tokens
        assert len(ways["self"]["acceptance_by_depth"]) <= 2
        assert sum(ways["self"]["steps_by_drafts"].values()) > 0


@pytest.mark.slow
def test_users_at_once_get_the_texts_of_plain_decoding(subject: Subject) -> None:
    (users,) = last(gpu_users.batches(subject))["users"].values()
    assert users["identical_answers"] == users["answers"] == 4
    assert users["ratio"]["median"] == pytest.approx(users["auto"]["median"] / users[PLAIN]["median"], rel=1e-3)


@pytest.mark.slow
def test_exact_compares_with_plain_decoding(subject: Subject) -> None:
    figures = last(gpu_users.exact(subject))
    assert [(each["prompts"], each["tokens"]) for each in figures["comparisons"]] == [(2, 10), (1, 5), (1, 5)]
    for each in figures["comparisons"]:
        assert each["identical_tokens"] == each["tokens"] and each["departures"] == []


class Hashing:
    """In the place of a LanguageModel: a model that is a hash, whose steps a fake device runs."""

    def __init__(self, device: Device) -> None:
        self.engine = Engine(SteppingForward(64, device), letters())
        self.policies: dict[str, Policy] = {PLAIN: Autoregressive(), "self": Drafting(4), "auto": Drafting(7)}

    def check(self, decoder: str) -> str:
        return decoder

    def sequence(self, tokens: list[int], params: SamplingParams, decoder: str) -> Sequence:
        return Sequence(tokens, params, self.policies[decoder], frozenset({END}), CONTEXT)


def test_users_who_come_and_go_get_what_they_get_alone() -> None:
    device = Device(right=0.8, row_seconds=0.0)
    model = Hashing(device)
    sizes = replace(SIZES, users=(1, 5), requests=12, user_tokens=40, arrival_gap=0.005, stay_seconds=0.4)
    subject = Subject("hash", LoadSettings(), sizes, model=model, prompts=PROMPTS)  # type: ignore[arg-type]
    subject.__dict__["_short"] = [[number % 20, *range(number)] for number in range(1, 12)]
    figures = last(gpu_arrivals.arrivals(subject))
    for found in figures["users"].values():
        assert (
            found["compared"] == found["asked"] == found["whole"] + found["left"] == found["greedy"] + found["sampled"]
        )
        assert (found["wrong"], found["errors"], found["blocks_left"], found["own_step_failures"]) == ([], [], 0, 0)
        assert min(found["left"], found["own forwards"], found["host forwards"]) > 0
    made = {
        "smoke": False,
        "machine": {"device": "x"},
        "dtype": "x",
        "versions": dict.fromkeys(VERSIONS),
        "commit": "x",
    }
    ran = {"is_complete": True, "left_out": [], "seconds": 1, "error": None, "circumstances": made}
    assert gpu_tables.gpu_tables({"arrivals": figures | ran}).count("| yes |") == 2
    figures["users"]["5"]["wrong"].append({"request": 3})
    assert gpu_tables.gpu_tables({"arrivals": figures | ran}).count("| no |") == 1


def test_what_a_crowd_is_told_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are compared with those of another seed."""
    alone = gpu_arrivals._alone
    seeds = itertools.count(100)

    def other(worker: Any, model: Any, request: gpu_arrivals.Request) -> tuple[int, ...]:
        params = replace(request.params, temperature=1.0, seed=next(seeds))
        return alone(worker, model, replace(request, params=params))

    monkeypatch.setattr(gpu_arrivals, "_alone", other)
    sizes = replace(SIZES, users=(3,), requests=8, user_tokens=40, arrival_gap=0.005, stay_seconds=0.2)
    subject = Subject("hash", LoadSettings(), sizes, model=Hashing(Device()), prompts=PROMPTS)  # type: ignore[arg-type]
    subject.__dict__["_short"] = [[number % 20, *range(number)] for number in range(1, 12)]
    assert last(gpu_arrivals.arrivals(subject))["users"]["3"]["wrong"]


@pytest.mark.slow
def test_the_bench_takes_the_path_that_users_take(subject: Subject) -> None:
    figures = last(gpu_arrivals.agreement(subject))
    assert set(figures["groups"]) == {"maths", "general"}
    assert figures["identical_answers"] == dict.fromkeys((PLAIN, "self", "auto"), 2)
    assert set(figures["paths"].values()) == {"gpu, own steps"}


def test_a_departure_is_logged_with_its_margin(subject: Subject) -> None:
    forward, prompt = subject.model.engine.forward, subject.model.encode("why")
    (plain,) = gpu_users.write_together(subject.model, [prompt], PLAIN, 4, 1).answers
    other = (*plain[:2], plain[2] + 1, plain[3])
    figures = gpu_users.comparison(forward, [prompt], [plain], [other])
    (departure,) = figures["departures"]
    assert (departure["prompt"], departure["position"], figures["identical_tokens"]) == (0, 2, 2)
    logits = plain_network(subject.name)(torch.tensor([[*prompt, *plain[:2]]])).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    assert int(logits.argmax()) == plain[2]
    assert departure["margin"] == pytest.approx(best - second, abs=1e-3)


@pytest.mark.slow
def test_steps_are_timed_by_rows_drafts_and_parts(subject: Subject) -> None:
    figures = last(gpu_steps.steps(subject))
    assert list(figures["forward"]) == ["1", "64"] and list(figures["forward_with_masks"]) == ["64"]
    assert {drafts: step["rows"] for drafts, step in figures["steps"].items()} == {"0": 1, "2": 9}
    assert set(figures["over_one_row"]) == {"64 rows", "64 rows, masks"}
    assert set(figures["parts"]["0"]) == {"layers", "head", "settle", "whole"}
    assert set(figures["parts"]["2"]) == {"layers", "head", "settle", "drafts", "whole"}
    assert all(part["median"] > 0 for parts in figures["parts"].values() for part in parts.values())


def test_a_timed_forward_is_the_one_that_is_asked_for(subject: Subject) -> None:
    forward = gpu_steps.gpu_forward(subject)
    logits_WV = gpu_steps.forward_call(forward, 9, 20, masks=True).call()
    assert isinstance(logits_WV, torch.Tensor)
    ((shape, _),) = forward._graphs.items()
    assert (shape.real, shape.masks, shape.wanted, shape.has_trees) == (8, 8, 16, True)
    # Its first row is the pending token; what the cache holds before it is zeros in both.
    fresh = gpu_steps.gpu_forward(subject)
    table = fresh.cache.open(64)
    table.length = 20
    (plain,) = fresh(lay_out([make_block(20, [1])]), [table])
    assert torch.allclose(logits_WV[0], plain.logits_WV[0], atol=1e-4)


def test_a_timed_step_begins_where_it_began(subject: Subject) -> None:
    forward = gpu_steps.gpu_forward(subject)
    timed, stepper = gpu_steps.stepper_call(forward, 0, 20, 1)
    assert timed.reset is not None
    timed.reset()
    timed.call()
    timed.call()
    assert stepper.layout.starts_B.tolist() == [23]  # one step is in flight
    timed.reset()
    assert stepper.layout.starts_B.tolist() == [20] and not stepper.in_flight


@pytest.mark.parametrize(
    ("rows", "most", "masks"), [(1, 8, 0), (8, 8, 7), (64, 8, 7), (81, 8, 8), (64, 3, 3), (7, 3, 0)]
)
def test_masks_hang_off_every_node(rows: int, most: int, masks: int) -> None:
    assert gpu_steps.mask_chain(rows, most) == masks


def test_transformers_own_step_is_its_own(subject: Subject) -> None:
    """Token by token what it says of the whole text, and the same again from where it began."""
    tokens = [7, 100, 30, 201, 5, 66]

    def whole(count: int) -> int:
        text = torch.tensor([[1] * 20 + tokens[:count]], device=DEVICE)
        return int(subject.network(input_ids=text).logits[0, -1].argmax())

    with torch.no_grad():
        step, reset = gpu_steps.own_step(subject.network, 20)
        for _ in range(2):
            reset()
            said = [step(torch.tensor([[token]], device=DEVICE)).item() for token in tokens]
            assert said == [whole(count) for count in range(1, len(tokens) + 1)]


def test_a_step_that_is_not_replayed_is_not_judged(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile that compiles nothing: as slow as without it."""
    monkeypatch.setattr("torch.compile", lambda function, mode: function)
    monkeypatch.setattr(
        gpu_steps, "interleaved", lambda calls, *_, times, **__: {name: [1.0] * times for name in calls}
    )
    figures = last(gpu_steps.compiled(subject))
    assert figures["is_replayed"] is False and figures["ratio"]["count"] == 1
    (row,) = gpu_tables._bars({"compile": figures | ended()})
    assert row[-1].startswith("not judged")


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="what stands in for torch.compile cannot be captured as a graph")
def test_attention_is_timed_beside_torchs_own(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda function, **_: function)
    subject.sizes = replace(SIZES, attention_rows=(9,), attention_contexts=(20,))
    figures = last(gpu_attention.attention(subject))
    ways = figures["steps"]["9 rows, context 20"]
    assert set(ways) == {gpu_attention.OURS, *gpu_attention.FLEX, gpu_attention.DENSE, "ratios"}
    told = gpu_tables.gpu_tables({"attention": figures | ended()})
    assert "| attention of one layer, µs | ours |" in told and "| 9 rows, context 20 |" in told


def test_a_row_sees_its_ancestors() -> None:
    rows = lay_out([make_block(3, [1], DraftTree.chain([1, 1], "x"), anchors=[ROOT, 1], masks=2)])
    assert (gpu_attention.ancestors(rows.parents_Q) == lineage([int(each) for each in rows.parents_Q])[0]).all()


@pytest.mark.slow
def test_a_large_model_is_made_of_nothing(subject: Subject) -> None:
    figures = last(gpu_large.large(subject))
    assert figures["forward"].keys() == {"1", "64"} and figures["weights"] == "random"
    assert figures["projection"]["is_a_projection"] is True
    assert set(figures["projection"]["groups"]) == {"maths", "general"}


def test_random_weights_have_the_shapes_of_a_stacked_model(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    network = load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True).network
    stacked = stack(network, random_adapter(load_tiny(folder), rank=16, masks=8), merges=False)
    shape = Shape("tiny", layers=2, hidden=32, inner=48, heads=4, kv_heads=2, head_size=8, vocabulary=260)
    made = gpu_large.random_weights(shape, 16, 8, torch.float32, torch.device("cpu"))
    assert _shapes(made.layers) == _shapes(stacked.layers)
    assert _shapes(made.sequential) == _shapes(stacked.sequential)
    for name in ("embedding_VC", "mask_embedding_KC", "norm_C", "head_VC"):
        assert getattr(made, name).shape == getattr(stacked, name).shape
    for name in ("query_heads", "key_heads", "head_size", "inner", "rank", "scaling"):
        assert getattr(made, name) == getattr(stacked, name)
    assert made.cosine_PD.shape[1] == stacked.cosine_PD.shape[1]
    assert torch.allclose(made.cosine_PD**2 + made.sine_PD**2, torch.ones(()))


def _shapes(of: Any) -> Any:
    if isinstance(of, torch.Tensor):
        return tuple(of.shape)
    if isinstance(of, tuple):
        return [_shapes(each) for each in of]
    if hasattr(of, "__slots__"):
        return {name: _shapes(getattr(of, name)) for name in of.__slots__}
    return of


# What is counted.


def timed(tokens: tuple[int, ...], seconds: float, forwards: int) -> Timed:
    return Timed(tokens, len(tokens) - 1, seconds, forwards, CHAIN)


def test_speed_ups_are_over_the_same_prompt() -> None:
    plain = [timed(tuple(range(11)), 10.0, 10), timed(tuple(range(21)), 20.0, 20)]
    ours = [timed(tuple(range(11)), 2.0, 4), timed((*range(20), 99), 10.0, 8)]
    peer = [timed(tuple(range(6)), 50.0, 5)]
    figures = gpu_answers.group_figures({PLAIN: plain, "self": ours, "auto": ours, PEER: peer})
    own = figures["self"]
    assert (own["speed_up"]["low"], own["speed_up"]["high"], own["speed_up_over_all"]) == (2.0, 5.0, 2.5)
    assert own["tokens_per_forward"] == 2.5 and own["share"] == 1.0
    assert (own["identical_answers"], own["identical_tokens"], own["all_tokens"]) == (1, 31, 32)
    assert own["over_transformers"]["median"] == 50.0 and figures[PLAIN]["over_transformers"]["median"] == 10.0
    assert figures[PEER]["same_first_tokens"] == 6


def test_an_answer_of_one_token_says_nothing_of_the_pace() -> None:
    plain = [timed((1,), 0.0, 0), timed((1, 2, 3), 2.0, 2)]
    figures = gpu_answers.group_figures({PLAIN: plain, "self": plain, "auto": plain, PEER: []})
    assert figures["self"]["speed_up"]["count"] == 1 and figures["self"]["all_tokens"] == 4
    assert PEER not in figures


def test_acceptance_counts_drafts_whose_parents_stood() -> None:
    # Depth 0: looked at in three steps, stood in two; depth 1 in two, stood in one; depth 2 in one, stood.
    rates = gpu_answers.acceptance_by_depth([timed((1, 2), 1.0, 1)])
    assert rates == pytest.approx([2 / 3, 1 / 2, 1.0], rel=1e-4)


def test_a_summary_leaves_out_a_tenth_at_either_end() -> None:
    assert gpu_timing.summary([float(value) for value in range(1, 22)]) == {
        "median": 11.0,
        "low": 3.0,
        "high": 19.0,
        "count": 21,
    }


def test_calls_are_timed_in_turn() -> None:
    order: list[str] = []
    what = {
        name: gpu_timing.Timed(lambda name=name: order.append(name), lambda name=name: order.append(f"reset {name}"))
        for name in "ab"
    }
    found = gpu_timing.interleaved(what, torch.device("cpu"), replays=2, times=2)
    turn = [*("reset a", "a", "a", "a"), *("reset b", "b", "b", "b")]
    assert order == ["reset a", "a", "reset b", "b", *turn, *turn]
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2}


def test_what_takes_too_long_is_broken_off() -> None:
    def the_time_is_up() -> None:
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1
        signal.raise_signal(signal.SIGALRM)

    with pytest.raises(TimeoutError, match="sleeping took longer than 1 s"), gpu_timing.at_most(1, "sleeping"):
        the_time_is_up()


def test_transformers_runs_as_torch_comes() -> None:
    ours = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with gpu_subject.as_torch_comes():
            assert torch.backends.cuda.cudnn_sdp_enabled() == gpu_subject._CUDNN_ATTENTION
        assert torch.backends.cuda.cudnn_sdp_enabled() is False
    finally:
        torch.backends.cuda.enable_cudnn_sdp(ours)


def test_the_projection_takes_the_drafts_that_give_most() -> None:
    acceptance = gpu_large.acceptances({"decode": {"groups": {"maths": {"self": {"acceptance_by_depth": [0.5, 0.5]}}}}})
    assert acceptance["maths"][0] == "decode" and acceptance["general"][0] == "bench/results/acceptance.json"
    steps = {"0": {"median": 10.0}, "2": {"median": 12.5}, "4": {"median": 13.0}}
    made = gpu_large.projection(steps, {"maths": acceptance["maths"]})
    # 1 + 0.5 + 0.25 tokens in 12.5 ms; of four drafts nothing is known.
    assert made["groups"]["maths"]["tokens_per_second"] == 140.0 and made["groups"]["maths"]["drafts"] == 2
    assert made["plain_tokens_per_second"] == 100.0 and made["groups"]["maths"]["over_plain"] == 1.4


def test_the_prompts_are_enough() -> None:
    subject = Subject("tiny", LoadSettings(device="cpu"), Sizes())
    groups = subject.groups()
    assert {group: len(set(texts)) for group, texts in groups.items()} == {"maths": 12, "general": 12}
    texts = [*subject.prompts["maths"], *subject.prompts["general"]]
    assert len(set(texts)) == len(texts) >= Sizes().exact_prompts
    assert len(subject.prompts["general"]) >= Sizes().exact_prompts // 2
    assert Sizes().large is MIDDLE


# Files and tables.


def ended(**changes: Any) -> dict[str, Any]:
    """How a part went, made up."""
    made = {
        "smoke": False, "dtype": "bfloat16", "commit": "abc", "machine": {"device": "NVIDIA H200"},
        "versions": {"torch": "2.11", "transformers": "5.17", "triton": "3.6"},
    }  # fmt: skip
    return {"is_complete": True, "left_out": [], "seconds": 1.0, "error": None, "circumstances": made} | changes


def test_a_table_says_which_goals_were_reached() -> None:
    plain = [timed(tuple(range(11)), 10.0, 10)]
    quick, slow = [timed(tuple(range(11)), 5.0, 4)], [timed(tuple(range(11)), 8.0, 4)]
    peer = [timed(tuple(range(6)), 50.0, 5)]
    group = gpu_answers.group_figures({PLAIN: plain, "self": quick, "auto": slow, PEER: peer})
    step = gpu_timing.summary([1.0])
    forwards = {
        "context": 512, "forward": {"1": step, "64": step}, "forward_with_masks": {"64": step},
        "steps": {"0": {"rows": 1} | step}, "parts": {"0": {"layers": step}},
        "over_one_row": {"64 rows": gpu_timing.summary([1.25])},
    }  # fmt: skip
    projected = gpu_large.projection(forwards["steps"], gpu_large.acceptances({}))
    compiled = {"context": 512, "is_replayed": True, "ratio": gpu_timing.summary([1.36])}
    compiled |= dict.fromkeys(("our_step", "our_forward", "compiled", "eager"), step)
    comparison = {"of": "self", "with": "plain", "prompts": 2, "tokens": 512, "identical_tokens": 500}
    comparison["departures"] = [{"prompt": 1, "position": 244, "margin": 0.0123}]
    users = {"auto": step, PLAIN: step, "ratio": step, "tokens_per_forward": 2.0, "identical_answers": 3, "answers": 3}
    results = {
        "decode": {"tokens": 256, "groups": {"maths": group}} | ended(),
        "steps": forwards | ended(),
        "compile": compiled | ended(),
        "batches": {"tokens": 128, "users": {"1": users}} | ended(left_out=["64 users"]),
        "rollouts": gpu_rollouts.rollout_figures(
            1024, 128, {"ours": [500.0], "transformers, dynamic cache": [100.0], "transformers, static cache": [50.0]}
        )
        | ended(),
        "exact": {"tokens": 256, "comparisons": [comparison]} | ended(),
        "large": forwards | {"shape": "8B", "projection": projected} | ended(error="RuntimeError: no memory"),
    }
    told = gpu_tables.gpu_tables(json.loads(json.dumps(results)))
    for line in (
        "| maths, `self`: speed-up over plain, 2.50 tokens per forward | 2.00x (0.80 of the tokens per forward) "
        "| at least 0.75 of them: 1.88x | yes |",
        "| maths, `auto`: speed-up over plain, 2.50 tokens per forward | 1.25x (0.50 of the tokens per forward) "
        "| at least 0.75 of them: 1.88x | no |",
        "| maths, `auto` over transformers `generate` | 12.50 (12.50 to 12.50)x | at least 10x | yes |",
        "| plain step over torch.compile's, context 512 | 1.36 (1.36 to 1.36)x | at most 1.35x | no |",
        "| 135M: forward over 64 rows / over one | 1.25 (1.25 to 1.25)x | at most 1.3x | yes |",
        "| 8B-shaped: forward over 64 rows / over one | 1.25 (1.25 to 1.25)x | at most 1.2x | no |",
        "| identical: self, with plain | 500 of 512 tokens of 2 prompts | all | no |",
        "| self | plain | 1 | 244 | 0.0123 |",
        "| `auto` over plain, 1 user | 1.00 (1.00 to 1.00)x | at least 1x | yes |",
        "| rollouts, 1,024 sequences, over transformers, dynamic cache | 5.00 (5.00 to 5.00)x | well above 1x | yes |",
    ):
        assert line in told
    assert "**projection**, not measured" in told
    assert "`batches`, not measured (out of time): 64 users." in told
    assert "`large` broke off: RuntimeError: no memory" in told
    assert "NVIDIA H200, bfloat16, torch 2.11, transformers 5.17, triton 3.6, commit abc." in told


def test_a_part_that_breaks_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(subject: Subject) -> Any:
        yield {"found": len(subject.name)}
        assert json.loads(out.read_text())["steps"]["found"] == 4, "it is written at once"
        raise RuntimeError("no memory")

    def finds_nothing(subject: Subject) -> Any:
        yield from ()
        raise RuntimeError(subject.name)

    out = tmp_path / "folder" / "gpu.json"
    subject = Subject("tiny", LoadSettings(device="cpu"), SIZES, results={"exact": {"kept": 1} | ended()})
    monkeypatch.setitem(gpu.PARTS, "steps", breaks)
    assert gpu.run_part("steps", subject, {"smoke": True}, out) is False
    monkeypatch.setitem(gpu.PARTS, "exact", finds_nothing)
    assert gpu.run_part("exact", subject, {"smoke": True}, out) is False
    written = json.loads(out.read_text())
    assert written["steps"]["found"] == 4 and written["steps"]["is_complete"] is False
    assert written["steps"]["error"] == "RuntimeError: no memory"
    assert written["exact"]["kept"] == 1


@pytest.mark.parametrize("text", ["{", '{"sums": 1}'])
def test_a_file_of_something_else_is_not_written_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(text)
    with pytest.raises(gpu.InputError, match="another"):
        gpu.read_results(file)


def test_a_part_without_time_says_what_it_left_out(subject: Subject, tmp_path: Path) -> None:
    subject.seconds = 0.0
    assert gpu.run_part("batches", subject, {"smoke": True}, tmp_path / "gpu.json") is True
    written = json.loads((tmp_path / "gpu.json").read_text())["batches"]
    assert written["left_out"] == ["2 users"] and written["is_complete"] is False


def test_it_runs_from_a_command_line(
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU, where torch runs the model: there is nothing to say of steps, but of texts there is."""
    monkeypatch.setenv("STRIDELM_COMMIT", "f00")
    monkeypatch.setattr(gpu_subject, "SMOKE", SIZES)
    out = tmp_path / "gpu.json"
    model = [
        "--model",
        str(tiny_folder("llama", max_position_embeddings=4096)),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    assert gpu.main(["rollouts", "steps", "--out", str(out), "--smoke", *model]) == 1
    written = json.loads(out.read_text())
    assert written["rollouts"]["is_complete"] and not written["steps"]["is_complete"]
    assert "does not run on the GPU backend" in written["steps"]["error"]
    assert set(written["rollouts"]["tokens_per_second"]) == {"ours", *gpu_rollouts.CACHES}
    assert written["rollouts"]["ratio"]["over"] in gpu_rollouts.CACHES
    made = written["rollouts"]["circumstances"]
    assert made["commit"] == "f00" and made["smoke"] is True
    assert made["command"].startswith("python bench/gpu/run.py rollouts steps --out")
    assert "is a smoke run" in capsys.readouterr().out
