"""What ran is named wherever something is shown or measured: the backend, and whether it ran whole steps by itself. The
model is a hash whose steps a fake device runs."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from hash_stepper import Device
from real_server import NAME, events, serve_in_thread, until
from stepping_model import PROMPT, stepping_model
from stridelm.api import LanguageModel
from stridelm.bench.compare import compare
from stridelm.bench.measures import measure
from stridelm.bench.page.page import page
from stridelm.bench.page_figures import page_figures
from stridelm.bench.quality import judge
from stridelm.bench.records import PHASES, Answer, Question, Report, read_report
from stridelm.bench.report import write_json
from stridelm.bench.run import run
from stridelm.bench.subjects.ours import Ours, ours
from stridelm.bench.subjects.server import Server
from stridelm.bench.table import table
from stridelm.bench.tune import measure as tune
from stridelm.bench.tune import table as tune_table
from stridelm.chat.local import LocalSpeaker
from stridelm.chat.openai_stream import Endpoint
from stridelm.chat.remote import RemoteSpeaker
from stridelm.chat.screen import details
from stridelm.chat.speaker import total
from stridelm.cli.answer_figures import as_json, summary
from stridelm.cli.race import run_races
from stridelm.params import SamplingParams
from stridelm.prompts import PromptLine
from stridelm.settings import PLAIN, DecodeSettings
from stridelm.stats import path_in_words, steps_in_words

TOKENS = 40
PARAMS = SamplingParams(max_tokens=TOKENS)
MESSAGES = [{"role": "user", "content": PROMPT}]
QUESTION = Question("suite", "question", tuple(MESSAGES), TOKENS)
OWN, HOSTS = "hash, own steps", "hash, host's steps"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return stepping_model()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serve_in_thread(stepping_model()) as running, running.client() as made:
        yield made


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0, **fields}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


# The rule


@pytest.mark.parametrize(
    ("forwards", "own", "answers", "words"),
    [
        (1, 0, 1, "host's steps"),
        (0, 0, 1, "host's steps"),
        (60, 0, 1, "host's steps"),
        (60, 59, 1, "own steps"),
        (60, 57, 3, "own steps"),
        (60, 57, 1, "own steps for 57 of 60 forwards"),
        (60, 1, 1, "own steps for 1 of 60 forwards"),
        (60, 59, 0, "own steps for 59 of 60 forwards"),
    ],
)
def test_steps_in_words(forwards: int, own: int, answers: int, words: str) -> None:
    assert steps_in_words(forwards, own, answers) == words
    assert path_in_words("gpu", forwards, own, answers) == f"gpu, {words}"


@pytest.mark.parametrize(("decoder", "path"), [("auto", OWN), ("self", OWN), (PLAIN, OWN), ("ngram", HOSTS)])
def test_a_result_names_its_path(model: LanguageModel, decoder: str, path: str) -> None:
    result = model.generate(PROMPT, PARAMS, decoder=decoder)
    assert (result.path, result.stats.tokens) == (path, TOKENS)
    assert result.stats.steps == path.removeprefix("hash, ")
    own = [stride.is_own for stride in result.strides]
    assert sum(own) == result.stats.own_forwards == (len(own) - 1 if path is OWN else 0)
    assert summary(result, PARAMS)[1].startswith(f"{decoder} ({path}), exact")
    told = as_json(result)
    assert (told["path"], told["backend"], told["own_forwards"]) == (path, "hash", sum(own))


def test_steps_that_fail_are_the_hosts_and_counted() -> None:
    model = stepping_model(Device(right=0.0, faults=["launch"]))
    result = model.generate(PROMPT, PARAMS, decoder=PLAIN)
    assert result.path == f"hash, own steps for {TOKENS - 3} of {TOKENS} forwards"


def test_a_race_names_both_paths(model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    console, lines = Console(width=200, highlight=False), [PromptLine("the prompt", PROMPT)]
    run_races(model, lines, PARAMS, DecodeSettings("ngram"), raw=False, as_json=True, console=console)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["plain_path"], report["path"], report["identical"]) == (OWN, HOSTS, True)
    run_races(model, lines, PARAMS, DecodeSettings("self"), raw=False, as_json=False, console=console)
    assert capsys.readouterr().out.count(OWN) == 2


def test_explain_says_what_ran() -> None:
    model = stepping_model(Device(right=0.9))
    assert model.explain("self")[0] == "self: hash, no steps yet"
    stats = model.generate(PROMPT, PARAMS, decoder="self").stats
    first, *lines = model.explain("self")
    assert first.startswith(f"self: hash, own steps for {stats.own_forwards} of {stats.forwards} forwards; ")
    assert "the planner has no part in these" in first
    own = lines[: lines.index("the planner, for the host's 1 (those that read a prompt's end among them):")]
    assert own[0] == f"own steps, of {stats.own_forwards}:"
    assert own[1].endswith("%  no drafts") and own[-1].endswith(" drafts")
    assert lines[-2] == "blocks, of 1:"
    model.generate(PROMPT, PARAMS, decoder=PLAIN)
    assert model.explain(PLAIN) == [
        f"{PLAIN}: hash, own steps for {TOKENS - 1} of {TOKENS} forwards; no planner",
        f"own steps, of {TOKENS - 1}:",
        "  100%  no drafts",
    ]
    model.generate(PROMPT, replace(PARAMS, repetition_penalty=1.1), decoder="ensemble")
    host = model.explain("ensemble")
    assert host[0] == f"ensemble: {HOSTS}" and host[1].startswith("a forward here takes")


def test_a_chat_names_its_path(model: LanguageModel, client: httpx.Client) -> None:
    speakers = (
        LocalSpeaker(model, PARAMS, DecodeSettings("self")),
        RemoteSpeaker(Endpoint(f"{client.base_url}/v1", None), None, PARAMS, {}),
    )
    for speaker in speakers:
        reply = speaker.ask(MESSAGES)
        assert list(reply)
        report = reply.report()
        assert report.path == OWN and f"ran by {OWN}" in details(report)
        assert total([report, report]).path == OWN
        assert total([report, replace(report, path=HOSTS)]).path == f"{OWN}; {HOSTS}"
        assert total([report, replace(report, path=None)]).path is None
        reply.close()


def test_tune_names_paths(model: LanguageModel) -> None:
    settings = [DecodeSettings(PLAIN), DecodeSettings("self"), DecodeSettings("ngram")]
    measured = tune(model, [PROMPT, "c d e f g"], settings, PARAMS, rounds=1)
    assert [each.path for each in measured] == [OWN, OWN, HOSTS] == [each.entry()["path"] for each in measured]
    lines = tune_table(measured, measured[0])
    assert lines[0].endswith("  path") and sum(line.endswith(OWN) for line in lines) == 2


# The bench


def started(model: LanguageModel) -> list[Ours]:
    subjects = ours(model, map(DecodeSettings, ("auto", "self", "ngram")))
    for subject in subjects:
        subject.start()
    return subjects


def test_the_bench_measures_what_users_get(model: LanguageModel) -> None:
    engine = model.engine
    wrapped = (engine.forward, engine.own_steps, dict(vars(engine.own_steps)).keys())
    for subject in started(model):
        decoder = subject.about["decoder"]
        expected = model.generate(list(MESSAGES), PARAMS, decoder=decoder)
        answer = subject.ask(QUESTION)
        assert (answer.tokens, answer.backend, subject.about["backend"]) == (expected.token_ids, "hash", "hash")
        assert answer.own_forwards == (0 if decoder == "ngram" else (answer.forwards or 0) - 1)
        assert tuple(answer.phases) == PHASES
        assert sum(answer.phases.values()) == pytest.approx(answer.seconds)
        assert (answer.phases["steps"] > 0) == (decoder != "ngram") and answer.phases["forward"] > 0
        # Drafts that the device made and verified are in the traces of its steps.
        assert bool(answer.drafted_by_depth) == (decoder != PLAIN)
        accepted = sum(answer.accepted_by_depth)
        assert accepted == answer.count - (answer.forwards or 0)
        assert (engine.forward, engine.own_steps, dict(vars(engine.own_steps)).keys()) == wrapped


def asked(model: LanguageModel) -> Report:
    def judged(question: Question, answer: Answer, plain: Answer | None) -> Any:
        return judge(question, answer, plain, None)

    return run([*started(model)], [QUESTION], judge=judged, rounds=2, settings={}, circumstances={})


def shown(what: Any, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_the_report_names_paths(model: LanguageModel, tmp_path: Path) -> None:
    report = asked(model)
    write_json(report, page_figures(report), tmp_path / "bench.json")
    report = read_report(tmp_path / "bench.json")
    figures = measure(report)
    assert {each.subject: each.path for each in figures} == {PLAIN: OWN, "auto": OWN, "self": OWN, "ngram": HOSTS}
    assert all(each.phases["steps"] > 0 for each in figures if each.path == OWN)
    content = page(report, page_figures(report), None)
    assert content.count(f'<td class="words">{OWN}</td>') == 3
    wide, narrow = shown(table(figures), 300), shown(table(figures), 80)
    assert wide.count(OWN) == 3 and "ran by" not in wide
    assert f"self ran by {OWN}" in narrow and f"ngram ran by {HOSTS}" in narrow


def test_reports_of_before_name_none(model: LanguageModel, tmp_path: Path) -> None:
    report, file = asked(model), tmp_path / "bench.json"
    write_json(report, page_figures(report), file)
    entry = json.loads(file.read_text())
    for record in entry["records"]:
        del record["answer"]["own_forwards"], record["answer"]["backend"], record["answer"]["phases"]["steps"]
    file.write_text(json.dumps(entry))
    old = read_report(file)
    before, after = measure(old), measure(report)
    assert {each.path for each in before} == {None}
    assert "ran by" not in shown(table(before), 80)
    assert "path" not in shown(compare(old, report, before, after), 200)
    moved = [replace(each, path="hash, host's steps") for each in after]
    assert "another path" in shown(compare(report, report, after, moved), 200)


def test_a_server_tells_the_bench(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRIDELM_API_KEY", raising=False)
    subject = Server(f"{client.base_url}/v1")
    subject.start()
    answer = subject.ask(QUESTION)
    assert (answer.backend, answer.own_forwards) == ("hash", (answer.forwards or 0) - 1)


# The server


def test_a_reply_names_its_path(client: httpx.Client) -> None:
    stride = chat(client, n=3)["stride"]
    assert (stride["path"], stride["backend"]) == (OWN, "hash")
    assert stride["own_forwards"] == stride["forwards"] - 3 > 0
    stride = chat(client, stride={"decoder": "ngram"})["stride"]
    assert (stride["path"], stride["own_forwards"]) == (HOSTS, 0)


def test_a_trace_does_not_change_what_runs(client: httpx.Client) -> None:
    plain, traced = chat(client), chat(client, stride={"trace": True})
    assert traced["choices"] == plain["choices"]
    trace = traced["stride"].pop("trace")
    assert traced["stride"].keys() == plain["stride"].keys() and traced["stride"]["path"] == OWN
    first, *others = trace
    assert not first["is_own"] and all(forward["is_own"] for forward in others)
    assert all(len(token["alternatives"]) == 8 for token in first["emitted"])
    assert not any(token["alternatives"] for forward in others for token in forward["emitted"])
    drafts = [row for forward in others for row in forward["rows"] if row["kind"] == "draft"]
    assert drafts and {row["probability"] for row in drafts} == {None}
    assert {row["drafter"] for row in drafts} == {"self"} and all(row["text"] for row in drafts)
    assert sum(len(forward["accepted"]) for forward in others) > 0


@pytest.mark.parametrize("trace", [False, True])
def test_logprobs_have_the_alternatives_that_were_asked_for(client: httpx.Client, trace: bool) -> None:
    for count, path in ((3, HOSTS), (0, OWN)):
        reply = chat(client, logprobs=True, top_logprobs=count, stride={"trace": trace})
        content = reply["choices"][0]["logprobs"]["content"]
        assert {len(token["top_logprobs"]) for token in content} == {count}
        assert reply["stride"]["path"] == path


def test_a_race_on_the_page_runs_own_steps(client: httpx.Client) -> None:
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": TOKENS, "stride": {"decoder": "self"}}
    with client.stream("POST", "/playground/race", json=body) as response:
        assert response.status_code == 200, response.read()
        start, *strides, done = list(events(response))
    assert done == "[DONE]" and isinstance(start, dict) and start["backend"] == "hash"
    assert client.get("/playground/about").json()["backend"] == "hash"
    for lane in (0, 1):
        own = [each for each in strides if isinstance(each, dict) and each["lane"] == lane]
        assert [each["path"] for each in own] == [*[None] * (len(own) - 1), OWN]
        assert [each["forward"]["is_own"] for each in own] == [False, *[True] * (len(own) - 1)]


def test_metrics_count_own_steps() -> None:
    device = Device()
    with serve_in_thread(stepping_model(device)) as running, running.client() as client:
        stride = chat(client)["stride"]
        until(lambda: _metric(client, "forwards") == stride["forwards"])  # a reply may be here before it is counted
        assert _metric(client, "own_forwards") == stride["own_forwards"] > 0
        assert _metric(client, "own_step_failures") == 0
        device.faults = ["launch"]
        chat(client)
        assert _metric(client, "own_step_failures") == 1


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"stridelm:{name}_total")]
    return float(value)
