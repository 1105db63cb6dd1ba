"""The subjects of a bench: what they answer, and what they tell of it. Never how quick they are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assembly import assembled
from fake_openai import FakeOpenAI, breaks_after, event, fake_openai, piece, sends_json, streams
from real_server import NAME, serve_in_thread
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.draft_layers import DraftConfig, first_layers, save_draft
from stridelm.bench.records import PHASES, Answer, Question
from stridelm.bench.subjects import Absent
from stridelm.bench.subjects.hugging_face import HuggingFace, Strides, by_depth_of_chains, hugging_face
from stridelm.bench.subjects.ours import Ours, by_depth, check_questions, ours
from stridelm.bench.subjects.phases import HeadCost, Watch
from stridelm.bench.subjects.server import KEYS, Server, chunk_tokens
from stridelm.chat.openai_stream import ServerError
from stridelm.contracts import Forward
from stridelm.decode import autoregressive
from stridelm.layout import make_block
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DECODERS, PLAIN, DecodeSettings, LoadSettings
from stridelm.types import DraftTree, Trace

TOKENS = 12


def ask(content: str = "abc abc abc abd", max_tokens: int = TOKENS) -> Question:
    return Question("suite", "question", ({"role": "user", "content": content},), max_tokens)


QUESTION = ask()
CHAT = Question(
    "suite",
    "chat",
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two one two one"}),
    TOKENS,
)


def check_answer(answer: Answer) -> None:
    """What holds for every answer that tells its tokens."""
    assert answer.count == len(answer.tokens) == sum(answer.stride_tokens) > 0
    assert len(answer.stride_tokens) == len(answer.stride_seconds) == answer.forwards
    assert 0 < answer.first <= answer.stride_seconds[-1] <= answer.seconds
    assert list(answer.stride_seconds) == sorted(answer.stride_seconds)
    assert answer.memory_peak is not None and answer.memory_peak > 2**20
    assert len(answer.drafted_by_depth) == len(answer.accepted_by_depth)
    for drafted, accepted in zip(answer.drafted_by_depth, answer.accepted_by_depth, strict=True):
        assert 0 <= accepted <= drafted > 0
    if answer.drafted_by_depth:
        assert sum(answer.accepted_by_depth) + len(answer.stride_tokens) >= answer.count


# Ours


def started(model: LanguageModel, *settings: DecodeSettings, **params: Any) -> list[Ours]:
    subjects = ours(model, settings, SamplingParams(**params))
    for subject in subjects:
        subject.start()
    return subjects


@pytest.mark.parametrize(
    ("question", "sampling"), [(QUESTION, {}), (CHAT, {"temperature": 0.8, "seed": 3})], ids=["greedy", "sampled"]
)
def test_every_decoder_answers_as_generate_does(
    roomy_model: LanguageModel, question: Question, sampling: dict[str, Any]
) -> None:
    subjects = started(roomy_model, *map(DecodeSettings, DECODERS), **sampling)
    assert [subject.name for subject in subjects] == list(dict.fromkeys([PLAIN, *DECODERS]))
    plain = subjects[0].ask(question)
    assert (plain.stride_tokens, plain.rows) == ((1,) * plain.count, plain.count - 1)
    assert not plain.drafted_by_depth
    params = SamplingParams(max_tokens=TOKENS, **sampling)
    for subject in subjects:
        answer = subject.ask(question)
        check_answer(answer)
        roomy_model.forget()
        expected = roomy_model.generate(list(question.messages), params, decoder=subject._settings)
        assert (answer.tokens, answer.text) == (expected.token_ids, expected.text)
        assert answer.prompt_tokens == len(roomy_model.encode(list(question.messages)))
        assert subject.about["exact"] == expected.exact
        if subject.about["exact"]:
            assert answer.tokens == plain.tokens
        subject.close()


def test_phases_are_the_whole_time(roomy_model: LanguageModel) -> None:
    for subject in started(roomy_model, *map(DecodeSettings, DECODERS), temperature=0.5, seed=1):
        answer = subject.ask(QUESTION)
        assert tuple(answer.phases) == PHASES
        assert all(seconds >= 0 for seconds in answer.phases.values())
        assert sum(answer.phases.values()) == pytest.approx(answer.seconds)
        assert (answer.phases["steps"], answer.own_forwards, answer.backend) == (0, 0, "torch")
        for phase in ("draft", "forward", "verify", "sampling", "rest"):
            assert answer.phases[phase] > 0, phase


def test_the_head_is_a_part_of_the_forward(roomy_model: LanguageModel) -> None:
    class Costly(HeadCost):
        def __call__(self, rows: int) -> float:
            return rows * 1.0

    watch = Watch()
    watch.seconds |= {"draft": 1.0, "forward": 10.0, "commit": 3.0, "sampling": 2.0, "steps": 0.5}
    watch.scored.update([0, 1, 1, 4])
    found = watch.phases(20.0, Costly(roomy_model.engine.forward))
    assert found == {"draft": 1, "forward": 4, "head": 6, "verify": 1, "sampling": 2, "steps": 0.5, "rest": 5.5}
    watch.scored[8] = 1
    assert watch.phases(20.0, Costly(roomy_model.engine.forward))["forward"] == 0


def test_the_head_is_timed_once_a_row_count(roomy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward: Forward = roomy_model.engine.forward
    asked: list[int] = []
    monkeypatch.setattr(forward, "score", lambda hidden_XC: asked.append(len(hidden_XC)), raising=False)
    cost = HeadCost(forward)
    assert cost(0) == 0 and not asked
    assert cost(3) == cost(3) > 0
    assert set(asked) == {3} and len(asked) < 10


def test_what_is_tolerated_is_said(roomy_model: LanguageModel) -> None:
    _, tolerant = started(roomy_model, DecodeSettings(tolerance=0.5))
    assert (tolerant.name, tolerant.about["exact"]) == ("auto tolerance 0.5", False)
    assert tolerant.about["settings"] == {"tolerance": 0.5}
    check_answer(tolerant.ask(QUESTION))


def test_nothing_stays_wrapped(roomy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    (subject,) = started(roomy_model)
    subject.warm_up()
    engine, cache = roomy_model.engine, roomy_model.engine.forward.cache
    forward, own_steps = engine.forward, engine.own_steps
    subject.ask(QUESTION)
    assert (engine.forward, engine.own_steps) == (forward, own_steps)

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("the cable")

    monkeypatch.setattr(autoregressive.Autoregressive, "commit", fail)
    with pytest.raises(RuntimeError, match="the cable"):
        subject.ask(QUESTION)
    assert (engine.forward, engine.own_steps) == (forward, own_steps)
    assert not roomy_model.engine.scheduler.running
    monkeypatch.undo()
    roomy_model.forget()
    cache.check_integrity()
    check_answer(subject.ask(QUESTION))


def test_every_answer_reads_its_prompt_anew(roomy_model: LanguageModel) -> None:
    (subject,) = started(roomy_model)
    long = ask("a long prompt, " * 20)
    first, second = subject.ask(long), subject.ask(long)
    assert first.rows == second.rows == first.count - 1, "rows that were not run would be missing"


def test_what_the_model_cannot_do(tiny: Callable[..., Checkpoint]) -> None:
    bare = assembled(tiny(), None, LoadSettings(cache_tokens=2048))
    _, by_masks = ours(bare, [DecodeSettings("self")])
    with pytest.raises(InputError, match="needs masks"):
        by_masks.start()
    with pytest.raises(InputError, match="--seed"):
        ours(bare, [], SamplingParams(temperature=1.0))
    check_questions(bare, [QUESTION])
    with pytest.raises(InputError, match=r"suite, question question: the prompt has \d+ tokens"):
        check_questions(bare, [QUESTION, ask("x" * 600)])


def test_a_draft_counts_where_its_parent_stood() -> None:
    # 0 and 1 hang off the root, 2 and 3 off 0, 4 off 1, 5 off 2.
    tree = DraftTree.of([7, 8, 9, 10, 11, 12], [-1, -1, 0, 0, 1, 2], "test")
    block = make_block(5, [1, 2], tree)
    assert by_depth([Trace(block, kept=(0, 1, 2, 4))]) == ((2, 2, 1), (1, 1, 0))
    assert by_depth([Trace(block, kept=(0, 1)), Trace(block, kept=(0, 1, 3, 6))]) == ((4, 1), (1, 1))
    assert by_depth([]) == by_depth([Trace(make_block(0, [1]), kept=(0,))]) == ((), ())


# transformers


@pytest.fixture(scope="module")
def tiny_draft(trainable: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's own first layer, as `stridelm train --mode draft` leaves it."""
    base, folder = trainable(), tmp_path_factory.mktemp("draft")
    save_draft(folder, DraftConfig(base.name, base.fingerprint, 1), first_layers(base.network, 1))
    return folder


def peers(folder: Path, draft: Path | None = None) -> list[HuggingFace]:
    return hugging_face(str(folder), LoadSettings(device="cpu", threads=1), None if draft is None else str(draft))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_transformers_says_the_same(
    family: str, tiny_folder: Callable[..., Path], tiny: Callable[..., Checkpoint]
) -> None:
    model = assembled(tiny(family), None, LoadSettings(cache_tokens=2048))
    (plain,) = started(model)
    for subject in peers(tiny_folder(family), tiny_folder(family, seed=1)):
        subject.start()
        subject.warm_up()
        assert subject.about["exact"] is True and subject.about["threads"] == 1
        for question in (QUESTION, CHAT):
            expected, answer = plain.ask(question), subject.ask(question)
            check_answer(answer)
            assert (answer.tokens, answer.text) == (expected.tokens, expected.text)
            assert answer.prompt_tokens == expected.prompt_tokens
            if subject.name == "transformers":
                assert (answer.stride_tokens, answer.rows) == (expected.stride_tokens, expected.rows)
                assert not answer.drafted_by_depth
        subject.close()


def test_transformers_with_the_first_layers_as_its_draft_model(
    tiny_folder: Callable[..., Path], tiny_draft: Path
) -> None:
    plain, assisted, _ = peers(tiny_folder(), tiny_draft)
    plain.start()
    assisted.start()
    answer = assisted.ask(QUESTION)
    check_answer(answer)
    assert answer.tokens == plain.ask(QUESTION).tokens
    assert assisted.about["draft_layers"] == 1
    assert answer.rows is not None and answer.forwards is not None
    assert answer.rows >= answer.forwards - 1 + sum(answer.drafted_by_depth)
    assert answer.drafted_by_depth, "it proposed something"


def test_transformers_without_a_draft_model(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(Absent, match="--draft-model"):
        peers(tiny_folder())[1].start()


def test_the_context_ends_an_answer_of_transformers(
    tiny_folder: Callable[..., Path], tiny: Callable[..., Checkpoint]
) -> None:
    (plain,) = started(assembled(tiny(), None, LoadSettings(cache_tokens=2048)))
    subject, question = peers(tiny_folder())[0], ask("x" * 480, max_tokens=100)
    subject.start()
    expected, answer = plain.ask(question), subject.ask(question)
    assert answer.tokens == expected.tokens and answer.count < 100


def test_a_streamer_tells_the_strides() -> None:
    strides = Strides()
    strides.put(torch.tensor([[1, 2, 3]]))
    for value in (torch.tensor([4]), torch.tensor([[5, 6]])):
        strides.put(value)
    strides.end()
    assert strides.tokens == [1, 2] and len(strides.moments) == 2


def test_chains_by_depth() -> None:
    assert by_depth_of_chains([(3, 1), (3, 3), (0, 0), (2, 0)]) == ((3, 2, 1), (2, 1, 1))
    assert by_depth_of_chains([(0, 0)]) == ((), ())


# Servers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    with fake_openai() as running:
        yield running


def test_a_server_is_asked_greedily(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    subject = Server(server.url)
    subject.start()
    subject.warm_up()
    assert (subject.name, subject.about["model"], subject.about["exact"]) == (server.url, "first", None)
    server.answers = [streams("Hi", " there", "!", usage=3)]
    answer = subject.ask(CHAT)
    assert (answer.text, answer.tokens, answer.stride_tokens) == ("Hi there!", (), (1, 1, 1))
    assert (answer.prompt_tokens, answer.forwards, answer.rows, answer.phases) == (9, None, None, {})
    assert 0 < answer.first <= answer.stride_seconds[-1] <= answer.seconds
    body = server.asked[-1]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0, TOKENS, "first")
    assert body["stream_options"] == {"include_usage": True} and body["messages"] == list(CHAT.messages)
    assert set(server.keys) == {"Bearer secret"}
    subject.close()


def test_a_named_model(server: FakeOpenAI) -> None:
    server.models = sends_json({"detail": "Not Found"}, 404)
    subject = Server(server.url, "mine")
    subject.start()
    subject.ask(QUESTION)
    assert server.asked[-1]["model"] == subject.about["model"] == "mine"
    assert subject.name == f"mine at {server.url}"


def test_a_server_that_does_not_count(server: FakeOpenAI) -> None:
    server.answers = [streams("Hi", " there")]
    subject = Server(server.url)
    subject.start()
    subject.warm_up()
    assert subject.about["tokens"].startswith("not told")
    assert subject.ask(QUESTION).stride_tokens == (1, 1)


def test_a_server_that_is_gone(server: FakeOpenAI) -> None:
    subject = Server(server.url)
    subject.start()
    server.answers = [breaks_after(event(piece("Hi")))]
    with pytest.raises(ServerError, match="broke"):
        subject.ask(QUESTION)
    gone = Server("http://127.0.0.1:1/v1")
    with pytest.raises(InputError, match="nobody listens there"):
        gone.start()
    with pytest.raises(InputError, match="such as http://"):
        Server("localhost")


def test_our_own_server(roomy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    expected = roomy_model.generate(list(CHAT.messages), SamplingParams(max_tokens=TOKENS))
    with serve_in_thread(roomy_model) as running:
        subject = Server(f"{running.url}/v1")
        subject.start()
        subject.warm_up()
        answer = subject.ask(CHAT)
    assert (subject.about["model"], subject.about["exact"], subject.about["decoder"]) == (NAME, True, "auto")
    assert (answer.text, answer.count, answer.forwards) == (expected.text, len(expected.token_ids), answer.forwards)
    assert answer.prompt_tokens == expected.stats.prompt_tokens


@pytest.mark.parametrize(
    ("lengths", "told", "strides", "tokens"),
    [
        ([], 3, (), ()),
        ([5, 5], None, (), (1, 1)),
        ([5, 5], None, (2, 2), (1, 1)),
        ([5, 5], 2, (), (1, 1)),
        ([1, 9], 5, (3, 2), (3, 2)),
        ([1, 9], 6, (3, 2, 1), (3, 3)),
        ([1, 9], 9, (3, 2, 1, 3), (2, 7)),
        ([1, 9], 12, (3, 2), (2, 10)),
        ([5, 5, 5, 5], 2, (), (0, 1, 1, 0)),
    ],
)
def test_tokens_of_chunks(
    lengths: list[int], told: int | None, strides: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    assert chunk_tokens(lengths, told, strides) == tokens


# The built-in model


@pytest.mark.slow
def test_the_built_in_models_own_draft_model() -> None:
    plain, assisted, look_up = hugging_face("smollm2", LoadSettings(device="cpu", threads=1))
    question = ask("Count from one to twenty in words.", max_tokens=48)
    for subject in (plain, assisted, look_up):
        subject.start()
    expected = plain.ask(question)
    for subject in (assisted, look_up):
        answer = subject.ask(question)
        check_answer(answer)
        assert answer.tokens == expected.tokens
    assert sum(assisted.ask(question).accepted_by_depth) > 5, "trained layers propose what the model says"
