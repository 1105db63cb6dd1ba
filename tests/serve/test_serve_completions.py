"""/v1/completions, /tokenize and /detokenize with a real engine on a tiny model."""

from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from asking import TEXT, chat, chunks, make_context, refusal, serving, submitted, text
from stridelm.api import LanguageModel
from stridelm.params import SamplingParams
from stridelm.serve.context import Context
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.settings import ServeSettings
from tiny import plain_network

NO_END = {"logit_bias": {"256": -100}}
FORM = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


def answer(client: TestClient, prompt: Any = "hello", /, **fields: Any) -> dict[str, Any]:
    reply = client.post(TEXT, json=text(prompt, **fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


def said(reply: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


def test_a_reply_has_openai_s_form(client: TestClient, context: Context) -> None:
    reply = answer(client)
    expected = context.model.twin().generate("hello", SamplingParams(max_tokens=8, temperature=1, seed=3), raw=True)
    assert reply["id"].startswith("cmpl-") and reply["object"] == "text_completion"
    [choice] = reply["choices"]
    assert choice == {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": expected.finish_reason}
    assert reply["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    assert reply["stride"]["seed"] == 3 and reply["metrics"]["speculative_decoding"]["num_draft_tokens"] >= 0


def test_sixteen_tokens_unless_told(client: TestClient) -> None:
    assert answer(client, max_tokens=None, **NO_END)["usage"]["completion_tokens"] == 16
    assert answer(client, "x" * 505, max_tokens=None, **NO_END)["usage"]["completion_tokens"] == 7
    assert refusal(client.post(TEXT, json=text("x" * 505)))["param"] == "max_tokens"
    assert refusal(client.post(TEXT, json=text("x" * 512)))["code"] == "context_length_exceeded"


def test_prompts_of_every_kind(client: TestClient, context: Context) -> None:
    ids = context.model.encode("hello", raw=True)
    whole = said(answer(client))
    assert said(answer(client, ids)) == whole
    assert said(answer(client, [ids, ids[:2]])) == [*whole, *said(answer(client, "he"))]
    both = answer(client, ["hello", "he"], n=2)
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert said(both) == said(answer(client, n=2)) + said(answer(client, "he", n=2))
    assert both["usage"]["prompt_tokens"] == 7
    assert answer(client, "\0")["usage"]["prompt_tokens"] == 1
    assert answer(client, " ")["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [260], [[1], [2**31 - 1]], ["a", 1], [1, "a"], None, [[1], "a"]]
)
def test_prompts_that_cannot_be_read(client: TestClient, prompt: Any) -> None:
    assert refusal(client.post(TEXT, json=text(prompt)))["param"].startswith("prompt")


def test_more_prompts_than_may_wait(language_model: LanguageModel) -> None:
    with serving(make_context(language_model, ServeSettings(max_queue=3))) as client:
        assert len(answer(client, ["a"] * 3)["choices"]) == 3
        assert refusal(client.post(TEXT, json=text(["a"] * 4)))["param"] == "prompt"


def test_echo_repeats_the_prompt(client: TestClient, context: Context) -> None:
    [plain] = said(answer(client))
    assert said(answer(client, echo=True)) == [f"hello{plain}"]
    assert said(answer(client, context.model.encode("hello", raw=True), echo=True)) == [f"hello{plain}"]
    silent = answer(client, echo=True, max_tokens=0, n=2)
    assert said(silent) == ["hello", "hello"] and silent["usage"]["completion_tokens"] == 0
    assert {choice["finish_reason"] for choice in silent["choices"]} == {"length"}


def test_no_tokens_are_answered_with_nothing(client: TestClient) -> None:
    silent = answer(client, ["hello", "he"], max_tokens=0, n=2)
    assert said(silent) == [""] * 4 and {choice["finish_reason"] for choice in silent["choices"]} == {"length"}
    assert silent["usage"]["prompt_tokens"] == 7 and silent["usage"]["completion_tokens"] == 0
    sent = chunks(client.post(TEXT, json=text(["hello", "he"], max_tokens=0, n=2, stream=True)))
    assert [choice["index"] for chunk in sent for choice in chunk["choices"]] == [0, 1, 2, 3]
    assert {chunk["choices"][0]["finish_reason"] for chunk in sent} == {"length"} and "stride" in sent[-1]
    # What cannot be is refused all the same.
    assert refusal(client.post(TEXT, json=text(max_tokens=0, logit_bias={"260": 1})))["param"] == "logit_bias"


def own_logprobs(context: Context, tokens: list[int]) -> torch.Tensor:
    """What the plain network says of each place: the logarithms of all probabilities of the next token."""
    network = plain_network(context.model.target.name)
    return network(torch.tensor([tokens])).logits[0].double().log_softmax(-1)


def test_logprobs_are_those_of_the_plain_network(client: TestClient, context: Context) -> None:
    """As lm-eval asks: the prompt and one token more."""
    prompts = ["What was said.", "x", "More of it, and at greater length: " + "so " * 40]
    reply = answer(client, prompts, echo=True, logprobs=2, max_tokens=1, temperature=0)
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        form = choice["logprobs"]
        count = len(prompt) + 1
        assert form.keys() == FORM and all(len(column) == count for column in form.values())
        assert "".join(form["tokens"]) == choice["text"] and form["text_offset"] == list(range(count))
        assert form["token_logprobs"][0] is None and form["top_logprobs"][0] is None
        tokens = context.model.encode(prompt, raw=True)
        expected = own_logprobs(context, tokens)
        for place, token in enumerate(tokens[1:], 1):
            assert form["token_logprobs"][place] == pytest.approx(expected[place - 1, token].item(), abs=1e-3)
            best = max(form["top_logprobs"][place].values())
            assert best == pytest.approx(expected[place - 1].max().item(), abs=1e-3)
            assert form["tokens"][place] in form["top_logprobs"][place]
        # lm-eval calls a token greedy if its logprob is exactly the best.
        assert form["token_logprobs"][-1] == max(form["top_logprobs"][-1].values())


def test_a_prompt_is_scored_without_an_answer(client: TestClient) -> None:
    scored = answer(client, echo=True, logprobs=0, max_tokens=0)
    form = scored["choices"][0]["logprobs"]
    assert form["tokens"] == list("hello") and all(len(top) == 1 for top in form["top_logprobs"][1:])
    longer = answer(client, echo=True, logprobs=0, max_tokens=4)["choices"][0]["logprobs"]
    assert longer["token_logprobs"][1:5] == pytest.approx(form["token_logprobs"][1:], abs=1e-4)
    assert len(longer["tokens"]) == 9


def test_logprobs_of_the_answer_alone(client: TestClient) -> None:
    form = answer(client, logprobs=20)["choices"][0]["logprobs"]
    assert len(form["tokens"]) == 8 and form["text_offset"][0] == 0
    # The halves of characters that a byte tokenizer has read alike, so that there may be fewer than 20.
    assert all(token in top and len(top) <= 21 for token, top in zip(form["tokens"], form["top_logprobs"], strict=True))
    assert refusal(client.post(TEXT, json=text(logprobs=1, stride={"decoder": "static"})))["param"] == "logprobs"
    lossy = text(logprobs=1, echo=True, max_tokens=0, stride={"decoder": "adaptive"})
    assert refusal(client.post(TEXT, json=lossy))["param"] == "logprobs"


def test_a_stream_says_what_the_reply_says(client: TestClient) -> None:
    for more in ({}, {"echo": True}, {"echo": True, "logprobs": 1}, {"echo": True, "logprobs": 1, "max_tokens": 0}):
        fields: dict[str, Any] = {"n": 2, **more}
        whole = answer(client, ["hello", "he"], **fields)
        body = text(["hello", "he"], **fields, stream=True, stream_options={"include_usage": True})
        *sent, usage = chunks(client.post(TEXT, json=body))
        assert usage["usage"] == whole["usage"] and usage["choices"] == []
        for choice in whole["choices"]:
            own = [chunk["choices"][0] for chunk in sent if chunk["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            assert [part["finish_reason"] for part in own][-1] == choice["finish_reason"]
            if "logprobs" in more:
                tokens = [token for part in own for token in part["logprobs"]["tokens"]]
                assert tokens == choice["logprobs"]["tokens"]
        assert "metrics" in sent[-1] and sent[-1]["stride"]["seed"] == 3


def test_a_trace_travels_with_its_chunk(client: TestClient) -> None:
    stride = {"decoder": "autoregressive", "trace": True}
    sent = chunks(client.post(TEXT, json=text(stream=True, stride=stride)))
    assert [len(chunk["stride"]["trace"]) for chunk in sent] == [1] * 8
    whole = answer(client, stride=stride)["stride"]["trace"]
    tokens = [chunk["stride"]["trace"][0]["emitted"][0]["token"] for chunk in sent]
    assert [forward["emitted"][0]["token"] for forward in whole] == tokens
    assert whole[0]["rows"][0] == {
        "kind": "pending",
        "parent": -1,
        "token": whole[0]["rows"][0]["token"],
        "text": "h",
        "probability": None,
        "drafter": None,
    }


def test_fields_of_sampling_arrive(client: TestClient, context: Context) -> None:
    answer(client, stop="zz", top_k=3, min_p=0.1, top_p=0.9, temperature=0.7, frequency_penalty=1, presence_penalty=2)
    params = submitted(context)[-1].params
    assert params == SamplingParams(
        max_tokens=8,
        stop=("zz",),
        top_k=3,
        min_p=0.1,
        top_p=0.9,
        temperature=0.7,
        frequency_penalty=1,
        presence_penalty=2,
        seed=3,
        logit_bias={},
    )
    answer(client, repetition_penalty=1.5, logit_bias={"7": -100}, stop=["a", "b"])
    params = submitted(context)[-1].params
    assert (params.repetition_penalty, params.logit_bias, params.stop) == (1.5, {7: -100}, ("a", "b"))
    assert params.temperature == 1


def test_text_is_cut_into_tokens_and_put_together(client: TestClient, context: Context) -> None:
    cut = client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    ids = context.model.encode("hé", raw=True)
    assert cut == {"count": 3, "max_model_len": 512, "tokens": ids, "token_strs": ["h", "Ã", "©"]}
    assert client.post("/tokenize", json={"prompt": ""}).json()["count"] == 0
    assert client.post("/tokenize", json={"prompt": "x" * 1000}).json()["count"] == 1000
    assert client.post("/detokenize", json={"tokens": ids, "model": "tiny"}).json() == {"prompt": "hé"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert refusal(client.post("/detokenize", json={"tokens": [260]}))["param"] == "tokens"
    assert refusal(client.post("/detokenize", json={"tokens": [-1]}))["param"] == "tokens.0"
    assert refusal(client.post("/tokenize", json={"prompt": 3}))["param"] == "prompt"
    assert refusal(client.post("/tokenize", json={"prompt": "x", "magic": 1}))["param"] == "magic"


def test_chats_are_cut_into_tokens(client: TestClient, context: Context) -> None:
    messages = [*chat()["messages"], {"role": "assistant", "content": "so"}]

    def cut(**fields: Any) -> str:
        reply = client.post("/tokenize", json={"messages": messages, **fields}).json()
        assert reply["token_strs"] is None
        return str(context.model.target.tokenizer.decode(reply["tokens"]))

    assert cut() == "[user] hello\n[assistant] so\n[assistant] "
    assert cut(add_generation_prompt=False) == "[user] hello\n[assistant] so\n"
    assert cut(add_generation_prompt=False, continue_final_message=True) == "[user] hello\n[assistant] so"
    tool = {"type": "function", "function": {"name": "look"}}
    assert "look" in cut(tools=[tool])


def test_special_tokens_are_added_if_asked(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = language_model.target.tokenizer
    encode = type(tokenizer).encode

    def with_beginning(self: Any, given: str, add_special_tokens: bool = True) -> list[int]:
        return [256] * add_special_tokens + encode(self, given, add_special_tokens=False)

    monkeypatch.setattr(type(tokenizer), "encode", with_beginning)
    with serving(make_context(language_model)) as client:

        def first(**body: Any) -> int:
            return client.post("/tokenize", json=body).json()["tokens"][0]

        assert first(prompt="a") == 256 != first(prompt="a", add_special_tokens=False)
        messages = chat()["messages"]
        assert first(messages=messages, add_special_tokens=True) == 256 != first(messages=messages)


def test_tokens_of_other_tokenizers_have_their_bytes() -> None:
    """As in Llama 2: words begin with an underscore of their own, and what has no token is written byte by byte."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁so", "né"]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    fused = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(fused)
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    so, half = tokens.index("▁so"), tokens.index("<0xC3>")
    assert vocabulary.text(so) == " so" and vocabulary.bytes(so) == list(b" so")
    assert vocabulary.bytes(half) == [0xC3] and vocabulary.bytes(tokens.index("né")) == list("né".encode())


def test_tokens_have_their_real_bytes(context: Context) -> None:
    tokenizer = context.model.target.tokenizer
    vocabulary = Vocabulary(tokenizer)
    for given in ("né", "\0", "日本 🙂"):
        assert (
            bytes(byte for token in tokenizer.encode(given) for byte in vocabulary.bytes(token) or ()) == given.encode()
        )
    assert vocabulary.text(256) == "<eos>" and bytes(vocabulary.bytes(256) or ()) == b"<eos>"
    assert vocabulary.text(258) == "" and vocabulary.bytes(258) == []  # the model has it, the tokenizer does not
