"""A chat with a model in this process, and the commands that a line may hold."""

import json
import re
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stridelm
from command_line import CTRL_C, Call, Keyboard, Run, assert_refused
from fake_openai import FakeOpenAI, fake_openai, streams
from stridelm.api import LanguageModel
from stridelm.chat.conversation import Conversation
from stridelm.chat.history import MAX_ENTRIES, MAX_LETTERS, History, history_file
from stridelm.chat.loop import COMMANDS, completions
from stridelm.chat.questions import LEAVING
from stridelm.chat.remote import RemoteSpeaker
from stridelm.chat.screen import stride_bars, stride_picture
from stridelm.chat.speaker import Report, total
from stridelm.engine.engine import Engine
from stridelm.models.adapter import save_adapter
from stridelm.params import SamplingParams
from tiny import CONTEXT, load_tiny, random_adapter

TOKENS = 12


@pytest.fixture
def chat(call: Call, tiny_folder: Callable[..., Path]) -> Call:
    """`stridelm chat` with a tiny model; what is given comes later and so prevails."""

    def run(*arguments: str | Path, lines: tuple[str, ...] = (), stdin: Any = None) -> Run:
        settings = ("--model", tiny_folder(), "--device", "cpu", "--max-tokens", TOKENS)
        given = stdin or "".join(f"{line}\n" for line in lines).encode()
        return call("chat", *settings, *arguments, stdin=given)

    return run


@pytest.fixture
def model(tiny_folder: Callable[..., Path]) -> LanguageModel:
    return stridelm.load(str(tiny_folder()), settings=stridelm.LoadSettings(device="cpu"))


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with fake_openai() as started:
        yield started


@pytest.fixture
def asking(call: Call, server: FakeOpenAI) -> Callable[..., Run]:
    """Lines typed to a server that numbers its answers."""
    server.answers = [streams(f"answer {number}") for number in range(1, 10)]
    return lambda *lines: call("chat", "--url", server.url, stdin=Keyboard(*lines))


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


# A model in this process


def test_a_pipe_is_answered_line_by_line(chat: Call, model: LanguageModel) -> None:
    run = chat("--system", "Be brief.", lines=("Hello", "", "And then?"))
    params = SamplingParams(max_tokens=TOKENS)
    messages = [say("system", "Be brief."), say("user", "Hello")]
    first = model.generate(messages, params)
    messages += [say("assistant", first.text), say("user", "And then?")]
    second = model.generate(messages, params)
    assert (run.status, run.out) == (0, f"{first.text}\n{second.text}\n")
    for line in run.err.splitlines():
        assert re.fullmatch(r"12 tokens, [\d.]+ tokens/s, [\d.]+ per forward, exact, cut off", line)
    assert run.err.count("\n") == 2


def test_lossy_answers_say_so(chat: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder())))
    assert ", not exact" in chat("--adapter", tmp_path, "--decoder", "adaptive", lines=("Hello",)).err


def test_an_answer_that_is_interrupted(
    chat: Call, model: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C within a step: the step is finished, what was written is kept and marked, and the engine goes on."""
    messages = [say("user", "Hello")]
    settings: dict[str, Any] = {"params": SamplingParams(max_tokens=TOKENS), "decoder": "autoregressive"}
    half = "".join(stride.text for stride in model.generate(messages, **settings).strides[:3])
    messages += [say("assistant", half), say("user", "Go on")]
    rest = model.generate(messages, **settings).text
    steps, step = [0], Engine.step

    def interrupted(engine: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 4:  # the first one warms up
            signal.raise_signal(signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    file = tmp_path / "said.jsonl"
    run = chat("--decoder", "autoregressive", stdin=Keyboard("Hello", "Go on", f"/save {file}"))
    assert run.status == 0
    assert run.err.count("interrupted, 3 tokens, ") == 1
    said = [json.loads(line) for line in file.read_text().splitlines()]
    assert said == [*messages[:1], messages[1] | {"finish_reason": "interrupted"}, messages[2], say("assistant", rest)]


def test_a_conversation_that_outgrows_the_context(chat: Call) -> None:
    run = chat(lines=("a" * 200, "b" * 200, "c" * 200, "d" * 200))
    assert run.status == 0
    assert run.err.count("oldest turn dropped") == 2
    assert run.err.count("12 tokens") == 4


def test_a_conversation_that_outgrows_the_cache(chat: Call) -> None:
    run = chat("--cache-tokens", "160", lines=("a" * 60, "b" * 60, "c" * 60))
    assert (run.status, run.err.count("dropped")) == (0, 2)


def test_a_question_that_is_too_long(chat: Call) -> None:
    long = "a" * CONTEXT
    run = chat(lines=("Hello", long, "Hello"))
    assert (run.status, "shorten it" in run.err) == (2, True)
    run = chat(stdin=Keyboard("Hello", long, "Hello"))
    assert (run.status, run.err.count("shorten it"), run.err.count("12 tokens")) == (0, 1, 2)


def test_decoders(chat: Call) -> None:
    run = chat(
        "--k", "3", stdin=Keyboard("/decoder", "/decoder ngram", "Hello", "/decoder draft", "/decoder x", "/decoder")
    )
    assert run.status == 0
    assert re.findall(r"^decoder: (\w+);", run.err, re.MULTILINE) == ["auto", "ngram", "ngram"]
    assert "--draft-model" in run.err and "no decoder 'x'" in run.err


def test_refused_before_anyone_asks(chat: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    assert_refused(chat("--decoder", "self", lines=("x",)), "masks")
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    (folder / "chat_template.jinja").unlink()
    assert_refused(chat("--model", folder), "no chat template")
    assert_refused(chat("--model", tmp_path), str(tmp_path))


def test_a_pipe_that_is_not_text(chat: Call) -> None:
    assert_refused(chat(stdin=b"\xff\n"), "standard input", "UTF-8")


# The commands


def test_undo_retry_and_clear(asking: Callable[..., Run], server: FakeOpenAI) -> None:
    run = asking("a", "b", "/undo", "c", "/retry", "/clear", "d")
    assert run.status == 0
    first = [("user", "a"), ("assistant", "answer 1")]
    assert server.messages(1) == [*first, ("user", "b")]
    assert server.messages(2) == server.messages(3) == [*first, ("user", "c")]
    assert server.messages(4) == [("user", "d")]
    assert "taken back: b" in run.err


def test_system(asking: Callable[..., Run], server: FakeOpenAI) -> None:
    asking("/system Be brief.", "a", "/clear", "/system", "b")
    assert server.messages(0) == [("system", "Be brief."), ("user", "a")]
    assert server.messages(1) == [("user", "b")]


@pytest.mark.parametrize("command", ["/undo", "/retry", "/save x"])
def test_nothing_was_said_yet(command: str, asking: Callable[..., Run], server: FakeOpenAI) -> None:
    run = asking(command)
    assert (run.status, server.asked) == (0, [])
    assert "nothing was said yet" in run.err


def test_save(asking: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "said so far.jsonl"
    run = asking("grüße", f"/save {file}", "b", f"/save {file}", "/save", f"/save {tmp_path}/none/x", "/save a\0b")
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == [
        say("user", "grüße"),
        say("assistant", "answer 1"),
    ]
    assert f"2 messages in {file}" in run.err
    assert f"{file}: is there already" in run.err
    assert "needs the name of a file" in run.err
    assert run.err.count("cannot be written") == 2


def test_stats(asking: Callable[..., Run], server: FakeOpenAI) -> None:
    server.answers = [streams("x", usage=6, stride={"forwards": 3}), streams("y", usage=4, stride={"forwards": 1})]
    run = asking("/stats", "a", "b", "/stats")
    assert "no answers yet" in run.err
    assert re.search(r"^2 answers: 10 tokens, [\d.]+ tokens/s, 2\.50 per forward$", run.err, re.MULTILINE)


def test_stats_say_what_the_short_line_leaves_out(chat: Call, model: LanguageModel) -> None:
    run = chat("--decoder", "autoregressive", lines=("Hello", "/stats"))
    said = run.err[run.err.index("the last answer:") :]
    assert re.search(r"^  first piece after \d+ ms$", said, re.MULTILINE)
    assert "  ran by torch, host's steps\n" in said
    assert f"  strides {' '.join('1' * TOKENS)}\n" in said
    assert f"  exact with respect to {model.target.description}\n" in said


def test_unknown_commands_are_not_sent(asking: Callable[..., Run], server: FakeOpenAI) -> None:
    run = asking("/nonsense", "/quit now", "/", " /etc/hosts, what is it?")
    assert run.err.count("there is no command") == 2
    assert "/bye takes nothing" in run.err
    assert [server.messages(number) for number in range(len(server.asked))] == [[("user", "/etc/hosts, what is it?")]]


def test_unknown_commands_end_a_script(call: Call, server: FakeOpenAI) -> None:
    assert_refused(call("chat", "--url", server.url, stdin=b"/nonsense\nHello\n"), "/nonsense", "/help")
    assert server.asked == []


def test_help_names_every_command(asking: Callable[..., Run]) -> None:
    run = asking("/help")
    assert all(re.search(rf"^{name} ", run.err, re.MULTILINE) for name in COMMANDS)


# Endings


@pytest.mark.parametrize("way", ["/bye", "/quit", "/exit"])
def test_ways_to_leave(way: str, asking: Callable[..., Run], server: FakeOpenAI) -> None:
    assert asking(way, "never asked").status == 0
    assert server.asked == []


def test_an_end_without_questions(call: Call, server: FakeOpenAI) -> None:
    command = ("chat", "--url", server.url)
    assert call(*command, stdin=Keyboard()).status == 0
    assert call(*command, stdin=b"").status == 0
    assert_refused(call(*command, stdin=None), "no standard input")
    assert server.asked == []


def test_ctrl_c_at_the_prompt_says_how_to_leave(asking: Callable[..., Run], server: FakeOpenAI) -> None:
    run = asking(CTRL_C, "a", '"""dropped', CTRL_C, "b")
    assert (run.status, run.err.count(LEAVING)) == (0, 2)
    assert [content for role, content in server.messages(1) if role == "user"] == ["a", "b"]


def test_ctrl_c_before_the_answer_begins(
    asking: Callable[..., Run], server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a server is silent, or a decoder is loaded."""
    ask, silent = RemoteSpeaker.ask, [True]

    def asked(speaker: RemoteSpeaker, messages: Any) -> Any:
        if silent.pop() if silent else False:
            raise KeyboardInterrupt
        return ask(speaker, messages)

    monkeypatch.setattr(RemoteSpeaker, "ask", asked)
    run = asking("a", "b")
    assert (run.status, run.err.count(f"stopped; {LEAVING}")) == (0, 1)
    assert server.messages(0) == [("user", "b")]


# What is typed


LINES = ('"""def f():', "", '    return "x"""" ', '"""/help"""', "Hello")
QUESTIONS = ['def f():\n\n    return "x"', "/help", "Hello"]


def test_questions_of_several_lines(call: Call, asking: Callable[..., Run], server: FakeOpenAI) -> None:
    """At a terminal and through a pipe; what stands in quotes is never a command."""
    asking(*LINES)
    server.answers = [streams("x")] * 3
    call("chat", "--url", server.url, stdin="".join(f"{line}\n" for line in LINES).encode())
    for last in (2, 5):
        assert [content for role, content in server.messages(last) if role == "user"] == QUESTIONS


def test_quotes_that_are_not_closed(call: Call, asking: Callable[..., Run], server: FakeOpenAI) -> None:
    assert asking("a", '"""b').status == 0
    assert_refused(call("chat", "--url", server.url, stdin=b'"""b\nc\n'), '"""', "at its end")
    assert len(server.asked) == 1


def test_what_was_typed_is_there_the_next_time(asking: Callable[..., Run]) -> None:
    readline = pytest.importorskip("readline")
    asking("a", "a", '"""b', 'c"""', "/stats")
    assert stat.S_IMODE(history_file().stat().st_mode) == 0o600
    readline.clear_history()
    asking()
    assert [readline.get_history_item(place + 1) for place in range(3)] == ["a", " b\nc", "/stats"]


def test_a_history_has_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "history"
    history = History(file)
    assert not history.add("x" * (MAX_LETTERS + 1)) and not history.add("  ")
    for number in range(MAX_ENTRIES + 5):
        assert history.add(f"{number}\n\u2028")
    file.write_bytes(file.read_bytes() + b'{"no": "text"}\nnot JSON\n\xff\n')
    kept = History(file).entries
    assert kept == [f"{number}\n\u2028" for number in range(5, MAX_ENTRIES + 5)]
    assert [json.loads(line) for line in file.read_text().splitlines()] == kept


def test_a_history_that_cannot_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "file" / "history"
    file.parent.write_text("in the way")
    assert History(file).add("a")
    assert History(file).entries == []


def test_tab_completes_commands_and_decoders() -> None:
    assert completions("/s") == ["/system ", "/stats", "/save "]
    assert completions("/decoder n") == ["/decoder ngram"]
    assert completions("") == completions("Hello") == completions("/decoder x") == []


# The figures


def test_strides_in_pictures() -> None:
    assert stride_picture(Report(1.0, None, strides=(1, 3, 12))) == "1 3 12"
    assert stride_picture(Report(1.0, None, strides=(9,) * 30 + (1,) * 24)) == "... " + " ".join("1" * 24)
    assert stride_picture(Report(1.0, None, histogram={3: 2, 1: 5})) == "5 x 1 2 x 3"
    assert stride_picture(Report(1.0, None)) == ""
    assert stride_bars(Report(1.0, None, histogram={3: 80, 1: 20, 9: 1})) == [
        "   1 " + "#" * 10 + " 20",
        "   3 " + "#" * 40 + " 80",
        "   9 # 1",
    ]


def test_totals_tell_only_what_all_tell() -> None:
    told = Report(2.0, 0.5, tokens=6, forwards=3, histogram={2: 3})
    both = total([told, told])
    assert (both.tokens, both.forwards, both.seconds, both.histogram) == (12, 6, 4.0, {2: 6})
    assert both.tokens_per_second == 3.0
    part = total([told, Report(1.0, None, tokens=4)])
    assert (part.tokens, part.forwards, part.tokens_per_forward) == (10, None, None)
    assert total([told, Report(1.0, None)]).tokens_per_second is None


def test_a_question_without_an_answer_is_not_kept() -> None:
    conversation = Conversation()
    conversation.ask("a")
    conversation.ask("b").answer = "c"
    conversation.ask("d")
    assert conversation.messages() == [say("user", "b"), say("assistant", "c"), say("user", "d")]
