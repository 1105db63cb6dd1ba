"""A chat with a server: what is sent, what is made of its replies, and every way in which it can go wrong."""

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Call, Keyboard, Run, assert_refused
from fake_openai import (
    Answer,
    FakeOpenAI,
    breaks_after,
    event,
    fake_openai,
    falls_silent_after,
    piece,
    sends,
    sends_json,
    sends_status,
    streams,
)
from stridelm.chat import openai_stream
from stridelm.chat.openai_stream import events
from stridelm.chat.questions import LEAVING

OURS: dict[str, Any] = {
    "stride": {"exact": True, "exact_to": "tiny", "decoder": "self", "seed": 1, "forwards": 3, "tokens_per_forward": 2},
    "metrics": {"speculative_decoding": {"acceptance_histogram": [1, 1, 1], "num_spec_steps": 3}},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    for name in ("STRIDELM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openai_stream, "SILENCE_SECONDS", 5.0)  # a test that waits for nothing ends
    with fake_openai() as started:
        yield started


@pytest.fixture
def chat(call: Call, server: FakeOpenAI) -> Call:
    """`stridelm chat` with the fake server; lines are piped in."""

    def run(*arguments: str | Path, lines: tuple[str, ...] = ("Hello",)) -> Run:
        return call("chat", "--url", server.url, *arguments, stdin="".join(f"{line}\n" for line in lines).encode())

    return run


def test_an_answer(chat: Call, server: FakeOpenAI) -> None:
    run = chat(lines=("Hello", "", "And then?"))
    assert (run.status, run.out) == (0, "Hi there\nHi there\n")
    assert run.err.count("3 tokens, ") == 2
    assert "per forward" not in run.err and "strides" not in run.err, "this server tells nothing of them"
    assert server.messages() == [("user", "Hello"), ("assistant", "Hi there"), ("user", "And then?")]


def test_what_is_sent_by_default(chat: Call, server: FakeOpenAI) -> None:
    chat("--system", "Be brief.")
    assert server.asked == [
        {
            "model": "first",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 256,
            "temperature": 0.0,
        }
    ]


def test_only_settings_that_were_given_travel(chat: Call, server: FakeOpenAI) -> None:
    chat("--model", "second", "--top-k", "5", "--stop", "x", "--seed", "7", "--decoder", "auto", "--k", "4")
    sent = server.asked[0]
    assert (sent["model"], sent["top_k"], sent["stop"], sent["seed"]) == ("second", 5, ["x"], 7)
    assert sent["stride"] == {"decoder": "auto", "k": 4}
    assert sent.keys().isdisjoint({"min_p", "top_p", "logit_bias"})


def test_our_own_servers_figures(chat: Call, server: FakeOpenAI) -> None:
    server.answers = [streams("One", " two", " three", usage=6, **OURS)]
    run = chat(lines=("Hello", "/stats"))
    assert "2.00 per forward, exact\n" in run.err and "  strides 1 x 1 1 x 2 1 x 3\n" in run.err
    steps = {"metrics": {"speculative_decoding": {"per_step_accepted": [0, 2, 1], "acceptance_histogram": [1, 1, 1]}}}
    server.answers = [streams("One", " two", " three", usage=6, **OURS | steps)]
    run = chat(lines=("Hello", "/stats"))
    assert "  strides 1 3 2\n" in run.err
    assert "exact with respect to tiny" in run.err
    lengths = {"stride": OURS["stride"] | {"lengths": [1, 2, 3]}}
    server.answers = [streams("One", " two", " three", usage=6, **OURS | lengths)]
    assert "  strides 1 2 3\n" in chat(lines=("Hello", "/stats")).err


@pytest.mark.parametrize(
    "figures", [7, "x", {"speculative_decoding": 5}, {"speculative_decoding": {"per_step_accepted": [-1]}}]
)
def test_figures_of_another_form_are_left_out(figures: object, chat: Call, server: FakeOpenAI) -> None:
    server.answers = [streams("Hi", metrics=figures, stride={"forwards": "many", "exact": 1}, usage=2)]
    run = chat()
    assert (run.status, run.out) == (0, "Hi\n")
    assert "exact" not in run.err and "strides" not in run.err


def test_a_server_that_counts_no_tokens(chat: Call, server: FakeOpenAI) -> None:
    server.answers = [streams("Hi")]
    run = chat()
    assert run.out == "Hi\n"
    assert "tokens" not in run.err
    assert re.fullmatch(r"[\d.]+ s\n", run.err)


def test_the_second_decoder_travels(chat: Call, server: FakeOpenAI) -> None:
    chat("--k", "4", lines=("a", "/decoder ngram", "b"))
    assert [sent["stride"] for sent in server.asked] == [{"k": 4}, {"decoder": "ngram"}]


# Events


def test_events() -> None:
    lines = [
        ": a comment", "data: one", "", "", "event: error", "data:two", "data:  three", "id: 5", "retry", "", "data",
        "", "event: empty", "", "data: broken off",
    ]  # fmt: skip
    assert list(events(lines)) == [("message", "one"), ("error", "two\n three"), ("message", "")]


def test_a_stream_in_an_unusual_dress(chat: Call, server: FakeOpenAI) -> None:
    """Comments, data over several lines, CR LF, a byte order mark, events torn apart anywhere, half characters."""
    lines = json.dumps(piece("häl", "stop"), indent=1, ensure_ascii=False).splitlines()
    text = "\ufeff: hello\r\n\r\n" + "".join(f"data: {line}\r\n" for line in lines) + "\r\ndata: [DONE]\r\n\r\n"

    def letter_by_letter(handler: Any) -> None:
        handler.begin(Connection="close")  # the end of the connection is the end of the body
        for byte in text.encode():
            handler.wfile.write(bytes([byte]))
        handler.close_connection = True

    server.answers = [letter_by_letter]
    run = chat()
    assert (run.status, run.out) == (0, "häl\n")


def test_an_answer_without_done_is_whole_if_it_says_why_it_ended(chat: Call, server: FakeOpenAI) -> None:
    server.answers = [sends(event(piece("Hi", "stop")))]
    assert chat().out == "Hi\n"


# What goes wrong

FAILURES: dict[str, tuple[Answer, tuple[str, ...]]] = {
    "refused": (sends_json({"error": {"message": "stride: unknown\nfield"}}, 400), ("400", "stride: unknown field")),
    "another form": (sends_json({"detail": "no such model"}, 404), ("404", "no such model")),
    "a page": (sends_status(502, "<h1>Bad Gateway</h1>"), ("502 Bad Gateway",)),
    "deep": (sends_status(500, "[" * 100_000, "application/json"), ("500",)),
    "not found": (sends_status(404, ""), ("404", "/v1")),
    "a redirect": (sends_status(307, "", Location="http://elsewhere/v1"), ("307", "http://elsewhere/v1", "--url")),
    "no stream": (sends_json({"choices": []}), ("does not stream", "application/json")),
    "a page in place of a stream": (sends_status(200, "<p>"), ("does not stream", "text/html")),
    "error event": (sends(event({"error": {"message": "out of memory"}})), ("out of memory",)),
    "named error event": (sends('event: error\ndata: {"message": "gone"}\n\n'), ("gone",)),
    "not JSON": (sends(event("{oops")), ("not JSON",)),
    "a list": (sends(event([1])), ("JSON object",)),
    "no choices": (sends(event({"id": 5})), ("no chunk",)),
    "content of another type": (sends(event(piece(5))), ("no chunk",)),  # type: ignore[arg-type]
    "broken": (breaks_after(event(piece("H"))), ("connection broke",)),
    "broken in an event": (breaks_after('data: {"choi'), ("connection broke",)),
    "ended too early": (sends(event(piece("H"))), ("connection broke",)),
    "done too early": (sends(event("[DONE]")), ("before the answer was finished",)),
    "gone at once": (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), ("connection broke",)),
    "not HTTP": (lambda handler: handler.wfile.write(b"hello\r\n\r\n"), ("does not speak HTTP",)),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_failures_in_a_script(failure: str, chat: Call, server: FakeOpenAI) -> None:
    answer, words = FAILURES[failure]
    server.answers = [answer]
    run = chat(lines=("Hello", "again"))
    assert_refused(Run(run.status, "", run.err), *words)
    assert run.out in ("", "H\n"), "what came before is shown"
    assert len(server.asked) == 1


def test_later_failures_lead_back_to_the_prompt(call: Call, server: FakeOpenAI) -> None:
    broken = [answer for answer, _ in FAILURES.values()]
    server.answers = [streams("Hi"), *broken, streams("Better")]
    run = call("chat", "--url", server.url, stdin=Keyboard("Hello", *["More"] * len(broken), "/retry"))
    assert run.status == 0
    assert run.err.count("stridelm: ") == len(broken)
    assert "Better" in run.out
    assert server.messages() == [("user", "Hello"), ("assistant", "Hi"), ("user", "More")], "no failed turn is kept"


def test_a_server_that_falls_silent(chat: Call, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "SILENCE_SECONDS", 0.2)
    server.answers = [falls_silent_after(event(piece("H")))]
    run = chat()
    assert_refused(Run(run.status, "", run.err), "no word")
    assert run.out == "H\n"


def test_a_slow_server_is_waited_for(chat: Call, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "SILENCE_SECONDS", 1.0)

    def drips(handler: Any) -> None:
        handler.begin(Transfer_Encoding="chunked")
        for text in ("slow", "but", "whole"):
            time.sleep(0.4)
            handler.chunk(event(piece(f"{text} ")))
        handler.chunk(event(piece(None, "stop")))
        handler.chunk("")

    server.answers = [drips]
    run = chat()
    assert (run.status, run.out) == (0, "slow but whole \n")


def test_a_line_without_end(chat: Call, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "_LONGEST_LINE", 1000)
    server.answers = [sends("data: " + "x" * 2000)]
    assert_refused(chat(), "longer than")


# At the start


def test_nobody_listens(call: Call) -> None:
    with fake_openai() as other:
        url = other.url
    assert_refused(call("chat", "--url", url, stdin=b"x\n"), url, "nobody listens")
    assert_refused(call("chat", "--url", "http://no.such.machine.invalid/v1", stdin=b"x\n"), "cannot be reached")


def test_a_wrong_key_is_told_at_the_start(chat: Call, server: FakeOpenAI) -> None:
    server.models = sends_json({"error": {"message": "wrong API key"}}, 401)
    assert_refused(chat("--model", "first"), "401", "wrong API key")


@pytest.mark.parametrize("listed", [{"data": []}, {"data": [{"name": "x"}]}, {}])
def test_a_server_that_lists_no_model(listed: object, chat: Call, server: FakeOpenAI) -> None:
    server.models = sends_json(listed)
    assert_refused(chat(), "--model")
    server.models = sends_status(404, "")
    assert_refused(chat(), "404", "/v1")
    assert chat("--model", "mine").out == "Hi there\n"
    assert server.asked[0]["model"] == "mine"


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://x:99999/v1", "http://x:y/v1", "http://x/v1?a=b",
     "http://me:secret@x/v1", "http://x/v 1", "http://[::1/v1", "http://x\n/v1", ""],
)  # fmt: skip
def test_addresses_that_are_none(url: str, call: Call) -> None:
    assert_refused(call("chat", "--url", url), "--url")


@pytest.mark.parametrize("option", ["--adapter=x", "--draft-model=x", "--heads=x", "--dtype=float32", "--threads=1"])
def test_options_of_a_model_here(option: str, chat: Call) -> None:
    assert_refused(chat(option), option.partition("=")[0], "--url")


# The key


def test_the_key(chat: Call, call: Call, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    chat()
    assert server.keys == [None, None]
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    chat()
    monkeypatch.setenv("STRIDELM_API_KEY", "ours")
    chat()
    chat("--api-key", "mine")
    assert server.keys[2:] == [key for key in ("Bearer theirs", "Bearer ours", "Bearer mine") for _ in range(2)]
    assert_refused(chat("--api-key", "a\nb"), "API key")
    assert_refused(call("chat", "--api-key", "x"), "--api-key", "--url")


def test_redirects_are_not_followed(chat: Call, server: FakeOpenAI) -> None:
    with fake_openai() as other:
        server.models = sends_status(302, "", Location=f"{other.url}/models")
        assert_refused(chat("--api-key", "secret"), "302", other.url)
        assert other.keys == []


# TLS


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_https(call: Call, server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://localhost:{server.server_port}/v1"
    assert_refused(call("chat", "--url", url, stdin=b"x\n"), "certificate is not trusted")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    run = call("chat", "--url", url, stdin=b"x\n")
    assert (run.status, run.out) == (0, "Hi there\n")


# In a terminal


PROMPT = "\x1b[?2004h> "
"""As readline shows it: pasted text is marked from then on."""


def read(terminal: int, until: str) -> str:
    """All that is written up to this end, after which the program waits."""
    seen = b""
    while not seen.endswith(until.encode()):
        assert select.select([terminal], [], [], 20)[0], seen
        seen += os.read(terminal, 4096)
    return seen.decode()


def said_to_interrupts(terminal: int, until: str) -> str:
    """Ctrl-C until it was heard: one that comes between Python's prompt and its wait for a line is noticed only with
    the next."""
    seen = ""
    for _ in range(4):
        os.write(terminal, b"\x03")
        while select.select([terminal], [], [], 5)[0]:
            seen += os.read(terminal, 4096).decode()
            if until in seen and seen.endswith(PROMPT):
                return seen
    raise AssertionError(seen)


@pytest.fixture
def in_background() -> Iterator[None]:
    """A shell lets what it starts in the background ignore interrupts, and so does all that is started from there."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def interruptible_chat(server: FakeOpenAI) -> list[str]:
    """A chat in a process of its own that an interrupt reaches, also where these tests run in the background."""
    program = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("stridelm", run_name="__main__", alter_sys=True)
"""
    return [sys.executable, "-c", program, "chat", "--url", server.url]


@pytest.mark.usefixtures("in_background")
def test_a_terminal(server: FakeOpenAI, tmp_path: Path) -> None:
    """Strides take turns in colour; Ctrl-C stops an answer, then the chat goes on; at the prompt it says how to leave.
    A text that is pasted is one question; the arrow keys bring it back."""
    server.answers = [
        streams("One", " two\x1b]0;mine\x07", usage=2),
        falls_silent_after(event(piece("Half"))),
        streams("Whole"),
        *[streams("Pasted")] * 2,
    ]
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm-256color", "XDG_STATE_HOME": str(tmp_path)}
        os.execv(sys.executable, interruptible_chat(server))
    assert "/help" in read(terminal, PROMPT)
    os.write(terminal, b"Hello\n")
    answer = read(terminal, PROMPT)
    assert "2 tokens, " in answer
    assert "\x1b[1mOne\x1b[0m\x1b[36m two\ufffd]0;mine\ufffd\x1b[0m" in answer, "the server's text commands nothing"
    os.write(terminal, b"More\n")
    read(terminal, "Half\x1b[0m")
    os.write(terminal, b"\x03")
    assert "interrupted" in read(terminal, PROMPT)
    os.write(terminal, b"And?\n")
    assert "Whole" in read(terminal, PROMPT)
    assert server.messages()[2:] == [("user", "More"), ("assistant", "Half"), ("user", "And?")]
    for keys in (b"\x1b[200~a\nb\x1b[201~\n", b"\x1b[A\n"):
        os.write(terminal, keys)
        assert "Pasted" in read(terminal, PROMPT)
    assert [server.messages(number)[-1] for number in (3, 4)] == [("user", "a\nb")] * 2
    assert LEAVING in said_to_interrupts(terminal, LEAVING)
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)


def test_torch_is_not_needed_for_a_server(server: FakeOpenAI) -> None:
    program = f"""
import sys
sys.argv = ["stridelm", "chat", "--url", {server.url!r}]
from stridelm.cli.app import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], input="Hello\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Hi there\n"), done.stderr


@pytest.mark.usefixtures("in_background")
def test_a_script_is_ended_by_an_interrupt(server: FakeOpenAI) -> None:
    server.answers = [falls_silent_after(event(piece("Half")))]
    pipe = subprocess.PIPE
    with subprocess.Popen(interruptible_chat(server), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"one\ntwo\n")
        process.stdin.close()
        assert process.stdout.read(4) == b"Half"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert len(server.asked) == 1
