"""Traces: what every forward pass of an answer ran, and what became of it."""

from typing import Any

from starlette.testclient import TestClient

from asking import CHAT, chat, chunks

NO_END = {"logit_bias": {"256": -100}}


def answer(client: TestClient, **fields: Any) -> dict[str, Any]:
    reply = client.post(CHAT, json=chat(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_trace_shows_what_was_run(client: TestClient) -> None:
    fields: dict[str, Any] = {
        "stride": {"decoder": "ngram", "trace": True},
        "max_tokens": 60,
        "temperature": 0.0,
        **NO_END,
    }
    reply = answer(client, **fields)
    trace = reply["stride"]["trace"]
    assert len(trace) == reply["stride"]["forwards"]
    emitted = [token for forward in trace for token in forward["emitted"]]
    assert len(emitted) == 60 and all(len(token["alternatives"]) == 8 for token in emitted)
    # Greedily, what was emitted is the likeliest.
    assert all(token["token"] == token["alternatives"][0]["token"] for token in emitted)
    rows = [row for forward in trace for row in forward["rows"]]
    assert {(row["kind"], row["drafter"]) for row in rows} == {("pending", None), ("draft", "ngram")}
    assert all((row["probability"] is not None) == (row["kind"] == "draft") for row in rows)
    for forward in trace:
        drafts = [number for number, row in enumerate(forward["rows"]) if row["kind"] == "draft"]
        assert sorted(forward["accepted"] + forward["rejected"]) == drafts
        accepted = [forward["rows"][number]["token"] for number in forward["accepted"]]
        assert [token["token"] for token in forward["emitted"]][: len(accepted)] == accepted
        assert all(row["parent"] < number for number, row in enumerate(forward["rows"]))
    counted = reply["metrics"]["speculative_decoding"]
    assert counted["num_draft_tokens"] == sum(row["kind"] == "draft" for row in rows)
    assert counted["num_accepted_draft_tokens"] == sum(len(forward["accepted"]) for forward in trace)
    _, *sent = chunks(client.post(CHAT, json=chat(**fields, stream=True)))
    assert sum(len(chunk["stride"]["trace"]) for chunk in sent) == len(sent)
    assert "trace" not in answer(client)["stride"]


def test_a_trace_shows_masks(client: TestClient) -> None:
    for forward in answer(client, stride={"decoder": "static", "k": 3, "trace": True})["stride"]["trace"]:
        kinds = [row["kind"] for row in forward["rows"]]
        pending = kinds.count("pending")
        assert kinds[pending:] == ["mask", "mask"][: len(kinds) - pending]
        assert [row["parent"] for row in forward["rows"]] == list(range(-1, len(kinds) - 1))
        assert all((row["token"] is None) == (row["kind"] == "mask") for row in forward["rows"])
        assert forward["accepted"] == forward["rejected"] == []


def test_traces_of_several_answers_say_whose_they_are(client: TestClient) -> None:
    trace = answer(client, n=2, stride={"trace": True}, logprobs=True, top_logprobs=1)["stride"]["trace"]
    assert {forward["choice"] for forward in trace} == {0, 1}
