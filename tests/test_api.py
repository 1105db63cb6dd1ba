"""load, stream, generate, astream: what a caller sees."""

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import stridelm
from assembly import assembled, checkpoint_of
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.settings import DecodeSettings

SHORT = SamplingParams(max_tokens=12)


def is_idle(model: LanguageModel) -> bool:
    cache = model.engine.forward.cache
    cache.check_integrity()
    return cache.free_blocks == cache.block_count and not model.engine.scheduler.running


def test_strides_add_up_to_the_result(language_model: LanguageModel) -> None:
    answer = language_model.stream("abcabcabc", SamplingParams(max_tokens=30), decoder="ngram")
    strides = list(answer)
    result = answer.result()
    assert "".join(stride.text for stride in strides) == result.text
    assert tuple(token for stride in strides for token in stride.tokens) == result.token_ids
    assert len(strides) == result.stats.forwards
    assert result.strides == tuple(strides)
    assert [stride.finish_reason for stride in strides] == [None] * (len(strides) - 1) + [result.finish_reason]
    for stride in strides:
        assert len(stride.tokens) == len(stride.sources) == len(stride.confidence)
        assert stride.sources[-1] == "model" and set(stride.sources[:-1]) <= {"ngram"}
        assert all(0 < confidence <= 1 for confidence in stride.confidence)
    assert is_idle(language_model)


def test_a_result_says_what_it_is(language_model: LanguageModel) -> None:
    result = language_model.generate(
        "hello", SamplingParams(max_tokens=8, temperature=1.0), decoder=DecodeSettings("draft", k=3)
    )
    assert result.exact and "float32" in result.exact_to and "cpu" in result.exact_to
    assert result.decoder == "draft"
    assert language_model.target.tokenizer.decode(list(result.token_ids), skip_special_tokens=True) == result.text
    again = language_model.generate(
        "hello", SamplingParams(max_tokens=8, temperature=1.0, seed=result.seed), decoder="autoregressive"
    )
    assert again.token_ids == result.token_ids
    stats = result.stats
    assert 0 < stats.ttft <= stats.latency
    assert stats.tokens == len(result.token_ids) and stats.rows >= stats.prompt_tokens + stats.tokens - 1
    assert stats.tokens_per_forward == stats.tokens / stats.forwards


def test_seeds_are_drawn_anew(language_model: LanguageModel) -> None:
    params = SamplingParams(max_tokens=4, temperature=1.0)
    assert len({language_model.generate("x", params).seed for _ in range(5)}) == 5


def test_a_list_is_one_batch_in_order(language_model: LanguageModel) -> None:
    texts = ["one", "two two two", "three"]
    together = language_model.generate(texts, SHORT)
    assert [result.token_ids for result in together] == [
        language_model.generate(text, SHORT).token_ids for text in texts
    ]
    chats = [[{"role": "user", "content": text}] for text in texts]
    assert [r.text for r in language_model.generate(chats, SHORT)] == [r.text for r in together]  # type: ignore[arg-type]


def test_text_is_a_users_turn_unless_raw(language_model: LanguageModel) -> None:
    decode = language_model.target.tokenizer.decode
    assert decode(language_model.encode("hi")) == "[user] hi\n[assistant] "
    assert decode(language_model.encode("hi", raw=True)) == "hi"
    assert language_model.encode([{"role": "user", "content": "hi"}]) == language_model.encode("hi")


def test_stop_strings_cut_text_and_tokens_alike_for_every_decoder(language_model: LanguageModel) -> None:
    whole = language_model.generate("abc", SamplingParams(max_tokens=60), decoder="autoregressive")
    letters = [text for text in whole.text[20:40] if text.isprintable()]
    stop = letters[0] if letters else whole.text[25]
    params = SamplingParams(max_tokens=60, stop=(stop,))
    plain = language_model.generate("abc", params, decoder="autoregressive")
    assert plain.finish_reason == "stop"
    assert stop not in plain.text and whole.text.startswith(plain.text)
    assert len(plain.token_ids) < len(whole.token_ids)
    for decoder in ("ngram", "draft"):
        other = language_model.generate("abc", params, decoder=decoder)
        assert (other.text, other.token_ids, other.finish_reason) == (plain.text, plain.token_ids, "stop")


def test_end_of_text_tokens_end_the_answer_within_a_stride(
    language_model: LanguageModel, tiny: Callable[..., Checkpoint]
) -> None:
    whole = language_model.generate("abcabc", SamplingParams(max_tokens=40), decoder="autoregressive")
    end = whole.token_ids[10]
    target = tiny("llama")
    ended = replace(target, eos_ids=frozenset([end]))
    twin = assembled(ended, ended, LoadSettings(cache_tokens=2048))
    for decoder in ("autoregressive", "ngram", "draft"):
        result = twin.generate("abcabc", SamplingParams(max_tokens=40), decoder=decoder)
        assert result.finish_reason == "stop"
        assert result.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
        assert is_idle(twin)


@pytest.mark.parametrize("decoder", ["autoregressive", "ngram", "draft"])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_max_tokens_is_exact(decoder: str, count: int, language_model: LanguageModel) -> None:
    result = language_model.generate("ababababab", SamplingParams(max_tokens=count), decoder=decoder)
    assert (len(result.token_ids), result.finish_reason) == (count, "length")


@pytest.mark.parametrize("decoder", ["autoregressive", "ngram", "draft"])
def test_the_context_is_filled_and_not_overrun(decoder: str, language_model: LanguageModel) -> None:
    ids = language_model.encode("a" * 500, raw=True)
    result = language_model.generate("a" * 500, SamplingParams(max_tokens=100), decoder=decoder, raw=True)
    assert len(ids) + len(result.token_ids) == language_model.target.context_length
    assert result.finish_reason == "length"


def test_long_prompts_are_read_in_parts(language_model: LanguageModel) -> None:
    texts = ["abc " * 40, "xyz " * 30, "short"]
    expected = [language_model.generate(text, SHORT).token_ids for text in texts]
    twin = language_model.twin()
    twin.engine.scheduler.prefill_rows = 50
    results = twin.generate(texts, SHORT)
    assert [result.token_ids for result in results] == expected
    assert results[0].stats.prefill_forwards >= 3


def test_more_prompts_than_the_cache_holds_wait_their_turn(tiny: Callable[..., Checkpoint]) -> None:
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=128))
    results = model.generate([f"prompt {number}" for number in range(9)], SHORT)
    assert [len(result.token_ids) for result in results] == [12] * 9
    assert is_idle(model)


def test_closing_an_answer_frees_its_blocks(language_model: LanguageModel) -> None:
    answer = language_model.stream("abc", SamplingParams(max_tokens=50))
    next(answer)
    answer.close()
    assert is_idle(language_model)
    assert list(answer) == []
    with pytest.raises(RuntimeError, match="closed"):
        answer.result()


def test_a_step_that_fails_leaves_the_engine_usable(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = language_model.generate("abc", SHORT).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(language_model.engine, "_emit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            language_model.generate(["abc", "def"], SHORT)
    assert is_idle(language_model)
    assert language_model.generate("abc", SHORT).token_ids == expected


def test_async_answers_share_steps(language_model: LanguageModel) -> None:
    texts = ["one", "two two", "three three three"]
    expected = [language_model.generate(text, SHORT).text for text in texts]
    steps = 0
    step = language_model.engine.step

    def counted():
        nonlocal steps
        steps += 1
        return step()

    language_model.engine.step = counted  # type: ignore[method-assign]

    async def read(text: str) -> str:
        return "".join([stride.text async for stride in language_model.astream(text, SHORT, decoder="autoregressive")])

    async def read_all() -> list[str]:
        return await asyncio.gather(*map(read, texts))

    assert asyncio.run(read_all()) == expected
    assert steps < 3 * 12
    assert is_idle(language_model)


def test_an_async_answer_that_is_given_up_frees_its_blocks(language_model: LanguageModel) -> None:
    async def first_stride() -> None:
        strides = language_model.astream("abc", SamplingParams(max_tokens=200))
        await anext(strides)
        await strides.aclose()  # type: ignore[attr-defined]

    asyncio.run(first_stride())
    assert is_idle(language_model)


def test_threads_share_an_engine(language_model: LanguageModel) -> None:
    texts = [f"text {number}" for number in range(6)]
    expected = [language_model.generate(text, SHORT).token_ids for text in texts]
    found: dict[int, tuple[int, ...]] = {}

    def run(index: int) -> None:
        found[index] = language_model.generate(texts[index], SHORT).token_ids

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(6)] == expected


def test_token_ids_are_a_prompt(language_model: LanguageModel) -> None:
    ids = language_model.encode("hello", raw=True)
    given = list(ids)
    expected = language_model.generate("hello", SHORT, raw=True).token_ids
    for raw in (False, True):
        assert language_model.generate(ids, SHORT, raw=raw).token_ids == expected
    assert language_model.stream(ids, SHORT).result().token_ids == expected
    other = language_model.generate([1, 2], SHORT).token_ids
    assert [result.token_ids for result in language_model.generate([ids, [1, 2]], SHORT)] == [expected, other]
    assert language_model.generate([], SHORT) == []

    async def tokens() -> list[int]:
        return [token async for stride in language_model.astream(ids, SHORT) for token in stride.tokens]

    assert tuple(asyncio.run(tokens())) == expected
    assert ids == given, "the caller's list stays the caller's"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(""), "empty"),
        (lambda m: m.generate("  \n"), "empty"),
        (lambda m: m.generate([{"role": "user"}]), "content"),
        (lambda m: m.generate("a" * 600), "512"),
        (lambda m: m.generate("a", decoder="psychic"), "autoregressive, self, heads, draft"),
        (lambda m: m.generate("a", decoder=DecodeSettings("ngram", k=0)), "between 1 and 64"),
        (lambda m: m.generate("a", decoder=DecodeSettings("autoregressive", k=3)), "has no --k"),
        (lambda m: m.generate("a", decoder=DecodeSettings("self", k=5)), "at most 4"),
        (lambda m: m.generate("a", decoder=DecodeSettings("static", k=5)), "at most 4"),
        (lambda m: m.generate("a", decoder=DecodeSettings("adaptive", threshold="high")), "threshold"),  # type: ignore[arg-type]
        (lambda m: m.generate("a", decoder=DecodeSettings("ngram", tolerance=float("nan"))), "tolerance"),
        (lambda m: m.explain("psychic"), "autoregressive, self, heads, draft"),
        (lambda m: m.generate("a", SamplingParams(logit_bias={999: 1.0})), "999"),
        (lambda m: m.generate([{"role": "user", "content": "a"}], raw=True), "raw"),
        (lambda m: m.generate([[]]), "empty"),
        (lambda m: m.stream([]), "empty"),
        (lambda m: m.generate([1, 2, 260]), r"prompt\[2\] is 260.*between 0 and 259"),
        (lambda m: m.generate([[1, 2], [3, -1]]), r"prompt\[1\] is -1"),
        (lambda m: m.generate([1, True]), r"prompt\[1\] is True"),
        (lambda m: m.generate([1.0, 2]), r"prompt\[0\] is 1.0.*whole numbers"),
        (lambda m: m.generate([1, "a"]), r"prompt\[1\] is 'a'.*text or messages"),
        (lambda m: m.generate([1, {"role": "user", "content": "a"}]), r"prompt\[1\]"),
        (lambda m: m.generate([[1], 2]), r"prompt\[0\] is \[1\]"),
        (lambda m: m.stream([[1], [2]]), r"prompt\[0\] is \[1\]"),
        (lambda m: m.generate([1] * 600), "512"),
        (lambda m: m.generate(b"abc"), r"b'abc'.*text \(str\)"),
        (lambda m: m.generate(3), "prompt is 3.*token ids"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    call: Callable[[LanguageModel], object], message: str, language_model: LanguageModel
) -> None:
    with pytest.raises(InputError, match=message):
        call(language_model)
    assert is_idle(language_model)


def test_a_request_larger_than_the_cache_is_refused(tiny: Callable[..., Checkpoint]) -> None:
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=64))
    with pytest.raises(InputError, match="--cache-tokens"):
        model.generate("hello", SamplingParams(max_tokens=100))


def test_a_request_of_the_maximum_length_is_answered(tiny: Callable[..., Checkpoint]) -> None:
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=60))
    assert model.max_length == 64, "the cache has whole blocks"
    prompt, forced = [1] * 10, {256: float("-inf")}
    assert len(model.generate(prompt, SamplingParams(max_tokens=54, logit_bias=forced)).token_ids) == 54
    with pytest.raises(InputError, match="--cache-tokens"):
        model.generate(prompt, SamplingParams(max_tokens=55, logit_bias=forced))


def test_a_text_of_the_maximum_length_is_scored(tiny: Callable[..., Checkpoint]) -> None:
    """Nothing is written, so no room is needed for an answer."""
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=64))
    strides = model.engine.strides_of(model.scoring([1] * model.max_length))
    assert sum(len(stride.confidence) for stride in strides) == model.max_length - 1


def test_a_draft_model_must_share_the_vocabulary(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    from tiny import byte_tokenizer, save_tiny

    other = save_tiny(tmp_path / "other", seed=3)
    byte_tokenizer(extra=("<new>",)).save_pretrained(other)
    with pytest.raises(InputError, match="vocabulary"):
        stridelm.load(str(tiny_folder("llama")), draft_model=str(other))


def test_a_failed_step_is_told_to_all_who_took_part(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = language_model.stream("done", SamplingParams(max_tokens=1))
    one, two = (language_model.stream(text, SHORT) for text in ("one", "two"))
    next(one)
    with monkeypatch.context() as patch:
        patch.setattr(language_model.engine, "_emit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            two.result()
    with pytest.raises(ZeroDivisionError):
        next(one)
    assert len(done.result().token_ids) == 1  # it had finished before
    assert is_idle(language_model)


def test_a_dropped_answer_is_given_up(language_model: LanguageModel) -> None:
    for _ in language_model.stream("abc", SamplingParams(max_tokens=200)):
        break
    gc.collect()
    result = language_model.generate("abc", SHORT)
    assert len(result.token_ids) == 12
    assert is_idle(language_model)
    assert not language_model._strides


def test_who_waits_for_room_does_not_hold_up_who_writes(tiny: Callable[..., Checkpoint]) -> None:
    model = assembled(tiny("llama"), None, LoadSettings(cache_tokens=128))
    params = SamplingParams(max_tokens=90)
    writer, waiter = model.stream("a", params), model.stream("b", params)
    thread = threading.Thread(target=waiter.result)
    thread.start()
    lengths = [len(writer.sequence.output) - sum(len(s.tokens) for s in writer.strides) for _ in writer]
    thread.join()
    # Were the lock kept, the writer would find all its strides made at once.
    assert min(lengths[:30]) < 40
    assert len(waiter.result().token_ids) == 90


def test_half_precision_is_not_called_exact_unless_plain(tiny_folder: Callable[..., Path]) -> None:
    model = stridelm.load(str(tiny_folder("llama")), settings=LoadSettings(device="cpu", dtype="bfloat16"))
    assert not model.generate("abc", SHORT, decoder="ngram").exact
    assert model.generate("abc", SHORT, decoder="autoregressive").exact


def test_draft_caches_are_shared(language_model: LanguageModel) -> None:
    for k in (None, 3, 4, 5):
        language_model.generate("abc", SHORT, decoder=DecodeSettings("draft", k=k))
    assert len({id(policy.drafter.forward) for policy in language_model._policies.values()}) == 1  # type: ignore[attr-defined]
    assert len(language_model._policies) == 4


def test_a_policy_explains_itself_if_it_can(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert language_model.explain("ngram") == ["ngram: torch, no steps yet; no planner"]
    settings = DecodeSettings("ngram", k=3)
    policy = language_model._policy(settings)
    monkeypatch.setattr(policy, "explain", lambda: ["all is well"], raising=False)
    assert language_model.explain(settings) == ["ngram: torch, no steps yet", "all is well"]


def test_banning_every_token_is_refused(language_model: LanguageModel) -> None:
    nothing = dict.fromkeys(range(language_model.target.vocabulary), float("-inf"))
    with pytest.raises(InputError, match="bans every token"):
        language_model.generate("abc", SamplingParams(logit_bias=nothing))


def test_a_draft_model_may_be_padded_to_another_size(tiny_folder: Callable[..., Path]) -> None:
    for size in (257, 300):
        padded = tiny_folder("llama", seed=4, vocab_size=size)
        model = stridelm.load(str(tiny_folder("llama")), draft_model=str(padded))
        for seed in range(12):  # some write ids that the smaller model has no embedding for
            params = SamplingParams(max_tokens=20, temperature=1.5, seed=seed)
            drafted = model.generate("abc", params, decoder="draft")
            assert drafted.token_ids == model.generate("abc", params, decoder="autoregressive").token_ids


def test_logits_that_are_not_finite_are_an_error(tiny_folder: Callable[..., Path]) -> None:
    model = stridelm.load(str(tiny_folder("llama", seed=9)))
    next(checkpoint_of(model).network.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        model.generate("A" * 20, SHORT, raw=True)
