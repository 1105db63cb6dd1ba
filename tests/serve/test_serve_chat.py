"""/v1/chat/completions with a real engine on a tiny model: every field has its effect, streams say what replies say."""

import math
import time
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, chat, chunks, make_context, refusal, serving, submitted
from stridelm.api import LanguageModel
from stridelm.params import SamplingParams
from stridelm.serve.context import Context
from stridelm.serve.settings import ServeSettings

EOS = 256
NO_END = {"logit_bias": {str(EOS): -100}}


@pytest.fixture(scope="module")
def reference(context: Context) -> LanguageModel:
    """The same model with an engine that the server does not use."""
    return context.model.twin()


def answer(client: TestClient, **fields: Any) -> dict[str, Any]:
    reply = client.post(CHAT, json=chat(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


def content(client: TestClient, **fields: Any) -> str:
    return answer(client, **fields)["choices"][0]["message"]["content"]


def test_a_reply_has_openai_s_form(client: TestClient, reference: LanguageModel) -> None:
    reply = answer(client)
    assert reply["id"].startswith("chatcmpl-") and reply["object"] == "chat.completion" and reply["model"] == "tiny"
    assert abs(reply["created"] - time.time()) < 600
    expected = reference.generate(chat()["messages"], SamplingParams(max_tokens=8, temperature=1, seed=3))
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == expected.finish_reason and choice["logprobs"] is None
    prompt = expected.stats.prompt_tokens
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 8,
        "total_tokens": prompt + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    stride = reply["stride"]
    assert stride["exact"] is True and stride["decoder"] == "auto" and stride["seed"] == 3
    assert stride["exact_to"] == "tiny in float32 on cpu, one token at a time"
    assert stride["tokens_per_forward"] == 8 / stride["forwards"]
    assert sum(stride["lengths"]) == 8 and len(stride["lengths"]) == stride["forwards"]


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"top_p": 0.2},
        {"top_k": 2},
        {"min_p": 0.5},
        {"presence_penalty": 60.0},
        {"frequency_penalty": 60.0},
        {"repetition_penalty": 30.0},
        {"logit_bias": {65: 5.0}},
        {"seed": 4},
        {"max_tokens": 5},
        {"stop": ["b"]},
    ],
    ids=str,
)
def test_every_sampling_field_does_what_the_engine_does(
    client: TestClient, reference: LanguageModel, field: dict[str, Any]
) -> None:
    """A bias keeps one token likely, so that penalties and stops have something to act on."""
    base: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "logit_bias": {65: 4.0}}
    stop: dict[str, Any] = {"stop": tuple(field.get("stop", ()))}
    expected = reference.generate(chat()["messages"], SamplingParams(**base | field | stop)).text
    assert expected != reference.generate(chat()["messages"], SamplingParams(**base)).text
    given = base | field
    given["logit_bias"] = {str(token): bias for token, bias in given["logit_bias"].items()}
    assert content(client, **given) == expected


def test_without_a_temperature_it_is_one(client: TestClient) -> None:
    assert content(client) == content(client, temperature=1.0) != content(client, temperature=0.0)
    assert content(client, temperature=None, top_p=None, stop=None, n=None, stride=None) == content(client)


def test_a_seed_is_drawn_and_named(client: TestClient) -> None:
    drawn = answer(client, seed=None)
    assert content(client, seed=drawn["stride"]["seed"]) == drawn["choices"][0]["message"]["content"]
    assert answer(client, seed=None)["stride"]["seed"] != drawn["stride"]["seed"]


def test_choices_share_a_seed_and_differ(client: TestClient, context: Context) -> None:
    reply = answer(client, n=3)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3 and texts[0] == content(client)
    sequences = submitted(context)[-4:-1]
    assert [sequence.choice for sequence in sequences] == [0, 1, 2] and {each.seed for each in sequences} == {3}
    assert reply["usage"]["completion_tokens"] == 24


def test_max_tokens_by_either_name_or_what_is_left(client: TestClient) -> None:
    assert answer(client, max_tokens=None, max_completion_tokens=5, **NO_END)["usage"]["completion_tokens"] == 5
    assert answer(client, max_completion_tokens=8, **NO_END)["usage"]["completion_tokens"] == 8
    assert answer(client, max_tokens=None, **NO_END)["usage"]["total_tokens"] == 512
    error = refusal(client.post(CHAT, json=chat("x" * 600)))
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"


def test_no_tokens_are_answered_with_nothing(client: TestClient) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        fields: dict[str, Any] = {"max_tokens": None, name: 0, "n": 2}
        reply = answer(client, **fields)
        assert [choice["message"]["content"] for choice in reply["choices"]] == ["", ""]
        assert {choice["finish_reason"] for choice in reply["choices"]} == {"length"}
        assert reply["usage"]["prompt_tokens"] > 0 and reply["usage"]["completion_tokens"] == 0
        sent = chunks(client.post(CHAT, json=chat(**fields, stream=True)))
        parts = [(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in sent]
        assert parts == [(0, None), (0, "length"), (1, None), (1, "length")]
        assert ["stride" in chunk for chunk in sent] == [False, False, False, True]
    # What cannot be is refused all the same.
    assert refusal(client.post(CHAT, json=chat(max_tokens=0, logit_bias={"260": 1})))["param"] == "logit_bias"


@pytest.mark.parametrize("decoder", ["autoregressive", "self", "draft", "ngram", "ensemble", "auto"])
def test_every_exact_decoder_says_the_same(client: TestClient, decoder: str) -> None:
    reply = answer(client, max_tokens=24, stride={"decoder": decoder})
    plain = answer(client, max_tokens=24, stride={"decoder": "autoregressive"})
    assert reply["choices"] == plain["choices"]
    assert reply["stride"]["decoder"] == decoder and reply["stride"]["exact"] is True


def test_settings_of_decoders_arrive(client: TestClient, context: Context) -> None:
    lossy = answer(client, stride={"decoder": "adaptive", "k_max": 4, "threshold": 0.0})
    assert lossy["stride"]["exact"] is False and lossy["stride"]["forwards"] == 2
    assert answer(client, stride={"decoder": "static", "k": 2})["stride"]["forwards"] == 4
    assert answer(client, stride={"decoder": "self", "tolerance": 0.5})["stride"]["exact"] is False
    answer(client, stride={"decoder": "self", "nodes": 1, "k": 2})
    assert submitted(context)[-1].policy is not submitted(context)[-2].policy


def test_metrics_are_vllm_s(client: TestClient) -> None:
    def metrics(**stride: Any) -> dict[str, Any]:
        return answer(client, max_tokens=64, stride=stride, temperature=0, **NO_END)["metrics"]["speculative_decoding"]

    assert metrics(decoder="autoregressive") == {
        "mean_acceptance_length": None,
        "draft_acceptance_rate": None,
        "acceptance_histogram": [],
        "num_spec_steps": 0,
        "num_draft_tokens": 0,
        "num_accepted_draft_tokens": 0,
    }
    drafted = metrics(decoder="ngram")
    histogram, steps = drafted["acceptance_histogram"], drafted["num_spec_steps"]
    assert steps == sum(histogram) > 0
    accepted = sum(count * times for count, times in enumerate(histogram))
    assert accepted == drafted["num_accepted_draft_tokens"] <= drafted["num_draft_tokens"]
    assert drafted["mean_acceptance_length"] == 1 + accepted / steps
    assert drafted["draft_acceptance_rate"] == accepted / drafted["num_draft_tokens"]


def test_logprobs_are_the_model_s_own(client: TestClient, reference: LanguageModel) -> None:
    reply = answer(client, logprobs=True, top_logprobs=3, temperature=0.5)
    places = reply["choices"][0]["logprobs"]["content"]
    params = SamplingParams(max_tokens=8, temperature=0.5, seed=3)
    expected = reference.generate(chat()["messages"], params, decoder="autoregressive")
    assert len(places) == 8
    for place, token, stride in zip(places, expected.token_ids, expected.strides, strict=True):
        assert place["logprob"] == pytest.approx(math.log(stride.confidence[0]), abs=1e-4)
        [letter] = [reference.target.tokenizer.convert_ids_to_tokens(token)]
        assert place["token"] == reference.target.tokenizer.decode([token]) and letter
        top = place["top_logprobs"]
        assert len(top) == 3 and top == sorted(top, key=lambda each: -each["logprob"])
        assert place["logprob"] <= top[0]["logprob"]
    written = b"".join(bytes(place["bytes"]) for place in places)
    assert written.decode(errors="replace") == reply["choices"][0]["message"]["content"]


def test_logprobs_without_alternatives(client: TestClient) -> None:
    places = answer(client, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert len(places) == 8 and all(place["top_logprobs"] == [] for place in places)
    assert answer(client, logprobs=False)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "stride", [{"decoder": "adaptive"}, {"decoder": "static"}, {"decoder": "self", "tolerance": 0.1}], ids=str
)
def test_lossy_decoders_have_no_logprobs(client: TestClient, stride: dict[str, Any]) -> None:
    assert refusal(client.post(CHAT, json=chat(stride=stride, logprobs=True)))["param"] == "logprobs"


def test_a_stream_says_what_the_reply_says(client: TestClient) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 20}
    whole = answer(client, **fields)
    sent = chunks(client.post(CHAT, json=chat(**fields, stream=True)))
    assert {chunk["object"] for chunk in sent} == {"chat.completion.chunk"} and len({c["id"] for c in sent}) == 1
    for index, choice in enumerate(whole["choices"]):
        opening, *own = [chunk["choices"][0] for chunk in sent if chunk["choices"][0]["index"] == index]
        assert opening["delta"] == {"role": "assistant", "content": ""}
        assert opening["logprobs"] is None and opening["finish_reason"] is None
        assert len(own) > 2 and all("role" not in each["delta"] for each in own)
        assert "".join(each["delta"].get("content", "") for each in own) == choice["message"]["content"]
        scored = zip(
            [each for part in own for each in part["logprobs"]["content"]], choice["logprobs"]["content"], strict=True
        )
        for one, other in scored:  # batches of other shapes round otherwise
            assert one["bytes"] == other["bytes"] and one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice["finish_reason"]]
    assert sent[-1]["metrics"].keys() == whole["metrics"].keys()
    assert sent[-1]["stride"].keys() == whole["stride"].keys() and sent[-1]["stride"]["seed"] == 3
    assert not any("metrics" in chunk or "usage" in chunk for chunk in sent[:-1])


def test_a_stream_counts_tokens_if_asked(client: TestClient) -> None:
    sent = chunks(client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True})))
    assert sent[-1]["choices"] == [] and sent[-1]["usage"] == answer(client)["usage"]
    assert all(chunk["usage"] is None for chunk in sent[:-1])
    assert "metrics" in sent[-2]
    plain = chunks(client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": False})))
    assert plain[-1]["choices"]


def test_a_stream_counts_on_in_every_chunk_if_asked(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    sent = chunks(client.post(CHAT, json=chat(stream=True, stream_options=options)))
    counts = [chunk["usage"]["completion_tokens"] for chunk in sent]
    assert counts == sorted(counts) and 0 == counts[0] < counts[1] < counts[-1]
    assert sent[-1]["choices"] == [] and sent[-1]["usage"] == sent[-2]["usage"] == answer(client)["usage"]


def test_messages_reach_the_template(client: TestClient, context: Context) -> None:
    def prompt() -> str:
        sequence = submitted(context)[-1]
        return str(context.model.target.tokenizer.decode(sequence.tokens[: sequence.prompt_length]))

    messages = [
        {"role": "system", "content": "Be\0kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "so "},
    ]
    answer(client, messages=messages)
    assert prompt() == "[system] Be\0kind.\n[user] a\nb\n[assistant] so \n[assistant] "
    answer(client, messages=messages, add_generation_prompt=False)
    assert prompt() == "[system] Be\0kind.\n[user] a\nb\n[assistant] so \n"
    answer(client, messages=messages, continue_final_message=True)
    assert prompt() == "[system] Be\0kind.\n[user] a\nb\n[assistant] so "
    assert answer(client, messages=[{"role": "user", "content": ""}])["usage"]["prompt_tokens"] > 0


class Anything:
    """A grammar that allows everything."""

    def allowed(self, written: Any) -> np.ndarray:
        return np.ones(260, dtype=bool)

    def accepts(self, written: Any, tokens: Any) -> int:
        return len(tokens)


def test_the_form_of_an_answer_is_a_grammar(language_model: LanguageModel) -> None:
    grammars = NotedGrammars(Anything)
    context = make_context(language_model, grammars=grammars)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with serving(context) as client:
        answer(client, response_format={"type": "text"})
        assert submitted(context)[-1].grammar is None
        answer(client, response_format={"type": "json_object"}, n=2)
        first, second = submitted(context)[-2:]
        assert isinstance(first.grammar, Anything) and first.grammar is not second.grammar
        answer(client, response_format=form)
        assert isinstance(submitted(context)[-1].grammar, Anything)
    assert grammars.asked == [{"type": "object"}, schema | {"additionalProperties": False}]


def test_schemas_have_limits(language_model: LanguageModel) -> None:
    def asked(schema: dict[str, Any]) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return refusal(client.post(CHAT, json=chat(response_format=form)))

    grammars = NotedGrammars()
    settings = ServeSettings(max_schema=200, max_schema_depth=4)
    with serving(make_context(language_model, settings, grammars)) as client:
        deep: Any = {}
        for _ in range(900):
            deep = {"items": deep}
        assert "deep" in asked(deep)["message"] and "bytes" in asked({"title": "x" * 200})["message"]
        assert grammars.asked == []
        assert asked({"type": "nonsense"})["param"] == "response_format"  # what the compiler refuses
        assert grammars.asked == [{"type": "nonsense"}]
