"""What the server counts, and the dashboard that shows it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from assembly import assembled
from real_server import NAME, ThreadServer, completion, events, serve_in_thread, until
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.settings import LoadSettings

DASHBOARD = Path(__file__).parent.parent.parent / "docs" / "grafana.json"
COUNTERS = [
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total", "vllm:num_preemptions_total", "stridelm:forwards_total",
    "stridelm:own_forwards_total", "stridelm:own_step_failures_total",
]  # fmt: skip
GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
]  # fmt: skip


@pytest.fixture
def client(server: ThreadServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def samples(client: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics, by its name and the labels that tell it from others."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
            found[" ".join([sample.name, *own])] = sample.value
            if sample.name.startswith(("vllm:", "stridelm:")):
                assert sample.labels["model_name"] == NAME and sample.labels["engine"] == "0"
    return found


def test_all_metrics_are_there_before_the_first_request(client: httpx.Client) -> None:
    found = samples(client)
    for name in COUNTERS + GAUGES:
        assert found[name] == 0
    for name in HISTOGRAMS:
        assert found[f"{name}_count"] == 0
    for reason in ("stop", "length", "abort", "error"):
        assert found[f"vllm:request_success_total {reason}"] == 0


@pytest.fixture
def drafting(tiny: Callable[..., Checkpoint]) -> Iterator[httpx.Client]:
    """A client of a model that drafts for itself, and so is right."""
    model = assembled(tiny("llama"), tiny("llama"), LoadSettings(cache_tokens=4096))
    with serve_in_thread(model) as server, server.client() as client:
        yield client


DRAFTED = completion(max_tokens=40, stride={"decoder": "draft", "k": 4})


def test_metrics_count_what_was_done(drafting: httpx.Client) -> None:
    answer = drafting.post("/v1/completions", json=DRAFTED).json()
    # The reply may be here before its end is counted.
    until(lambda: samples(drafting)["vllm:e2e_request_latency_seconds_count"] == 1)
    usage, found = answer["usage"], samples(drafting)
    assert found["vllm:prompt_tokens_total"] == usage["prompt_tokens"] == len("One two three")
    assert found["vllm:prefix_cache_queries_total"] == usage["prompt_tokens"]
    assert found["vllm:generation_tokens_total"] == usage["completion_tokens"]
    (choice,) = answer["choices"]
    assert found[f"vllm:request_success_total {choice['finish_reason']}"] == 1
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    # Each token but those of the first forward has its share of the time between two forwards.
    assert 1 <= usage["completion_tokens"] - found["vllm:inter_token_latency_seconds_count"] <= 5
    spent = found["vllm:time_to_first_token_seconds_sum"] + found["vllm:inter_token_latency_seconds_sum"]
    assert spent <= found["vllm:e2e_request_latency_seconds_sum"]
    accepted, drafted = (found[f"vllm:spec_decode_num_{kind}_tokens_total"] for kind in ("accepted", "draft"))
    assert 0 < found["vllm:spec_decode_num_drafts_total"] <= found["stridelm:forwards_total"]
    assert 0 < accepted <= drafted
    assert found["stridelm:forwards_total"] + accepted == usage["completion_tokens"]
    of_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    by_position = [value for name, value in found.items() if name.startswith(of_position)]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert found[f"{of_position} 0"] == by_position[0]


def test_prompts_that_are_known_already_are_counted_as_hits(client: httpx.Client) -> None:
    request = completion("A prompt of more than one block of the cache", stride={"decoder": "autoregressive"})
    length, found = len(request["prompt"]), list[dict[str, float]]()
    for _ in range(2):
        client.post("/v1/completions", json=request)
        found.append(samples(client))
    assert [each["vllm:prefix_cache_queries_total"] for each in found] == [length, 2 * length]
    assert [each["vllm:prefix_cache_hits_total"] for each in found] == [0, length // 16 * 16]


def test_gauges_tell_of_now(server: ThreadServer, client: httpx.Client) -> None:
    model = server.context.model
    model.engine.scheduler.max_sequences = 1
    step, may_step = model.engine.step, threading.Event()
    model.engine.step = lambda: step() if may_step.wait(60) else []
    requests = [
        threading.Thread(target=httpx.post, args=[f"{server.url}/v1/completions"], kwargs={"json": completion()})
        for _ in range(2)
    ]
    for request in requests:
        request.start()
    until(lambda: samples(client)["vllm:num_requests_waiting"] == 2)
    seen: list[dict[str, float]] = []
    model.engine.step = lambda: seen.append(samples(client)) or step()
    may_step.set()
    for request in requests:
        request.join(60)
    within = [each for each in seen if each["vllm:num_requests_running"] == 1]
    assert {each["vllm:num_requests_waiting"] for each in within} == {0, 1}
    assert all(0 < each["vllm:kv_cache_usage_perc"] < 1 for each in within)
    assert all(each["vllm:num_requests_running"] <= 1 for each in seen)
    found = samples(client)
    assert [found[name] for name in GAUGES] == [0, 0, 0]


def test_an_answer_that_nobody_wants_is_counted_as_such(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json=completion(max_tokens=400, stream=True)) as response:
        next(events(response))
    until(lambda: samples(client)["vllm:request_success_total abort"] == 1)
    assert samples(client)["vllm:e2e_request_latency_seconds_count"] == 0


def test_the_dashboard_asks_for_metrics_that_there_are(drafting: httpx.Client) -> None:
    drafting.post("/v1/completions", json=DRAFTED)
    known = {name.split(" ")[0] for name in samples(drafting)}
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            names = set(re.findall(r"\b(?:vllm|stridelm):\w+", target["expr"]))
            assert names and names <= known, (panel["title"], names - known)
            asked |= names
    sampled = {f"{name}_bucket" for name in HISTOGRAMS}
    assert asked >= sampled | set(COUNTERS) | set(GAUGES) | {
        "vllm:request_success_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    }
