"""The command line as a user meets it: what it prints, where it prints it, and how it ends."""

import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
import torch
import typer

import stridelm
from command_line import Call, Run, assert_refused
from stridelm import api
from stridelm.api import LanguageModel
from stridelm.cli import app as cli
from stridelm.cli import endings as cli_endings
from stridelm.cli import generate as generate_command
from stridelm.cli import race_report
from stridelm.cli.race import RaceLane, _run
from stridelm.cli.race_report import first_difference, shortened
from stridelm.engine.detokenize import TextStream
from stridelm.models.adapter import save_adapter
from stridelm.models.builtin import FOLDER
from stridelm.params import SamplingParams
from stridelm.settings import DECODERS, LoadSettings, field_docs
from stridelm.train.settings import PlaceSettings, TrainSettings
from tiny import CONTEXT, byte_tokenizer, load_tiny, random_adapter

PATIENCE = 600
"""Seconds until a script is taken to hang."""
SCRIPT = Path(sys.executable).with_name("stridelm")
OPTIONS = [
    "--prompts", "--model", "--adapter", "--decoder", "--k", "--max-tokens", "--temperature", "--top-p", "--top-k",
    "--min-p", "--seed", "--raw", "--race", "--json", "--draft-model", "--device", "--dtype", "--threads",
]  # fmt: skip
HEAVY = {"torch", "transformers", "numpy"}
TOKENS = 16
JSON_KEYS = {
    "text", "token_ids", "finish_reason", "tokens", "forwards", "tokens_per_forward", "ttft_ms", "latency_ms",
    "tokens_per_s", "decoder",
}  # fmt: skip


@pytest.fixture
def generate(call: Call, tiny_folder: Callable[..., Path]) -> Call:
    """`stridelm generate` with a tiny model; what is given comes later and so prevails."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Run:
        settings = ("--model", tiny_folder(), "--device", "cpu", "--max-tokens", TOKENS)
        return call("generate", *settings, *arguments, stdin=stdin)

    return run


def run_script(*arguments: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The installed program, with the buffered output that a user's has."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | settings
    return subprocess.run([SCRIPT, *arguments], text=True, env=environment, check=False, timeout=PATIENCE, **settings)


def write_lines(folder: Path, *entries: object) -> Path:
    """A file of prompts; text goes in as it is."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in entries))
    return file


def flat(text: str) -> str:
    return " ".join(text.split())


# Help and version


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["generate", "--help"],
        ["chat", "--help"],
        ["train", "--help"],
        ["acceptance", "--help"],
        ["export", "--help"],
        ["models", "-h"],
        ["--version"],
        [],
    ],
)
def test_help_needs_no_torch(arguments: list[str]) -> None:
    program = f"""
import sys
sys.argv = ["stridelm", *{arguments!r}]
from stridelm.cli.app import main
try:
    main()
finally:
    print("loaded:", *sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "loaded:\n")
    assert "stridelm" in done.stdout


def test_generate_help_names_every_option(call: Call) -> None:
    run = call("generate", "--help")
    assert (run.status, run.err) == (0, "")
    missing = [option for option in OPTIONS if not re.search(rf"^ +{option}\b", run.out, re.MULTILINE)]
    assert missing == []
    assert all(name in run.out for name in DECODERS)


@pytest.mark.parametrize("arguments", [[], ["--debug"]])
def test_nothing_given_shows_the_help(arguments: list[str], call: Call) -> None:
    assert call(*arguments) == call("--help")
    assert call("--help").out.startswith("Usage: stridelm [OPTIONS] COMMAND")


def test_version(call: Call) -> None:
    assert call("--version") == Run(0, f"stridelm {stridelm.__version__}\n", "")


# Options from dataclasses


@pytest.mark.parametrize("settings", [SamplingParams, LoadSettings])
def test_every_setting_is_documented(settings: type) -> None:
    assert field_docs(settings).keys() == {field.name for field in dataclasses.fields(settings)}
    assert all(text.endswith(".") for text in field_docs(settings).values())


@dataclasses.dataclass
class Example:
    """Not a field's."""

    bare: int = 0
    told: int = 0
    """Over
    two lines."""


def test_field_docs_reads_the_string_below() -> None:
    assert field_docs(Example) == {"told": "Over two lines."}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("generate", SamplingParams),
        ("generate", LoadSettings),
        ("train", TrainSettings),
        ("acceptance", PlaceSettings),
    ],
)
def test_help_and_defaults_come_from_the_settings(name: str, settings: type, call: Call) -> None:
    command = typer.main.get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    options = {option.name: option for option in command.params}
    shown = flat(call(name, "--help").out)
    for field in dataclasses.fields(settings):
        if field.name == "logit_bias":  # a mapping has no place on a command line
            assert "--logit-bias" not in shown
            continue
        text = field_docs(settings)[field.name]
        assert options[field.name].help.startswith(text)
        assert f"--{field.name.replace('_', '-')} " in shown
        assert text in shown
        assert (options[field.name].default or None) == (field.default or None)


# Answers


def test_answer_on_stdout_and_summary_on_stderr(generate: Call, language_model: LanguageModel) -> None:
    run = generate("Hello there")
    expected = language_model.generate("Hello there", SamplingParams(max_tokens=TOKENS))
    assert (run.status, run.out) == (0, f"{expected.text}\n")
    speed, what = run.err.splitlines()
    assert speed.startswith(f"{expected.stats.tokens} tokens in ")
    assert what == "auto (torch, host's steps), exact, finished by length"
    assert max(map(len, (speed, what))) <= 80


def test_the_seed_of_a_draw_is_named(generate: Call) -> None:
    assert generate("--temperature", "1", "--seed", "7", "Hello").err.endswith(", finished by length, seed 7\n")


def test_all_figures_on_demand(generate: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    run = generate("--stats", "--draft-model", tiny_folder(), "--decoder", "draft", "--seed", "7", "Hello there")
    (answer,) = generate("--json", "--draft-model", tiny_folder(), "--decoder", "draft", "Hello there").objects
    said = dict(re.findall(r"^(\w+(?: \w+)?) +(.*)$", "\n".join(run.err.splitlines()[2:]), re.MULTILINE))
    assert list(said) == ["first token", "prompt", "forwards", "drafts", "strides", "seed", "exact"]
    assert said["forwards"].startswith(f"{answer['forwards']}, {answer['own_forwards']} of them")
    assert said["seed"] == "7" and said["exact"] == f"with respect to {answer['exact_to']}"
    strides = [tuple(map(int, each)) for each in re.findall(r"(\d+) of (\d+)", said["strides"])]
    assert sum(count * length for count, length in strides) == answer["tokens"]
    file = write_lines(tmp_path, {"prompt": "One"})
    assert "\n[first token  after " in generate("--stats", "--prompts", file).out


def test_figures_are_not_held_up_by_what_is_measured_once(generate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's costs are known before an answer's clock starts."""
    order: list[str] = []
    make, stream = api.make_policy, LanguageModel.stream

    def made(*given: Any) -> Any:
        order.append("measured")
        return make(*given)

    def streamed(*given: Any, **options: Any) -> Any:
        order.append("asked")
        return stream(*given, **options)

    monkeypatch.setattr(api, "make_policy", made)
    monkeypatch.setattr(LanguageModel, "stream", streamed)
    assert generate("Hello").status == 0
    assert order == ["measured", "asked"]


def test_raw_skips_the_chat_template(generate: Call, language_model: LanguageModel) -> None:
    expected = language_model.generate("Hello there", SamplingParams(max_tokens=TOKENS), raw=True)
    assert generate("--raw", "Hello there").out == f"{expected.text}\n"
    assert generate("Hello there").out != f"{expected.text}\n"


def test_standard_input(generate: Call) -> None:
    assert generate(stdin="Größe 🙂".encode()).out == generate("Größe 🙂").out != generate("Hello").out


def test_a_prompt_may_look_like_an_option(generate: Call) -> None:
    assert generate("--", "--debug").out == generate(stdin=b"--debug").out


def test_text_is_not_touched(generate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal library would turn tabs into spaces, names into emoji and brackets into colours."""
    monkeypatch.setattr(TextStream, "push", lambda stream, token: "\t:smile:\r[bold]\n")
    monkeypatch.setattr(TextStream, "flush", lambda stream: "")
    assert generate("--max-tokens", "3", "Hello").out == "\t:smile:\r[bold]\n" * 3 + "\n"


def test_json(generate: Call, language_model: LanguageModel) -> None:
    run = generate("--json", "Hello there")
    (answer,) = run.objects
    expected = language_model.generate("Hello there", SamplingParams(max_tokens=TOKENS))
    assert (run.status, run.err) == (0, "")
    assert answer.keys() >= JSON_KEYS
    assert (answer["text"], tuple(answer["token_ids"])) == (expected.text, expected.token_ids)
    assert (answer["finish_reason"], answer["decoder"]) == ("length", "auto")
    assert (answer["path"], answer["backend"], answer["own_forwards"]) == ("torch, host's steps", "torch", 0)
    assert "explain" not in answer
    assert_consistent(answer)


def assert_consistent(answer: dict[str, Any]) -> None:
    tokens, forwards = answer["tokens"], answer["forwards"]
    assert tokens == len(answer["token_ids"])
    assert 1 <= forwards <= tokens
    assert answer["tokens_per_forward"] == pytest.approx(tokens / forwards, abs=1e-4)
    assert 0 < answer["ttft_ms"] <= answer["latency_ms"]
    assert answer["tokens_per_s"] == pytest.approx(tokens / answer["latency_ms"] * 1e3, rel=0.01)


def test_a_seed_gives_one_text_whatever_the_decoder(generate: Call, tiny_folder: Callable[..., Path]) -> None:
    sampled = ("--json", "--temperature", "0.8", "--max-tokens", "40", "Hello there, hello there, hello")
    decoders = {
        "autoregressive": (),
        "ngram": ("--k", "3"),
        "draft": ("--draft-model", tiny_folder(seed=1)),
    }
    answers = [
        generate("--decoder", name, "--seed", "7", *more, *sampled).objects[0] for name, more in decoders.items()
    ]
    assert [answer["decoder"] for answer in answers] == list(decoders)
    assert answers[0]["text"] == answers[1]["text"] == answers[2]["text"]
    assert answers[0]["token_ids"] == answers[1]["token_ids"] == answers[2]["token_ids"]
    assert generate("--seed", "8", *sampled).objects[0]["text"] != answers[0]["text"]


def test_a_drawn_seed_can_be_given_back(generate: Call) -> None:
    first = generate("--json", "--temperature", "1", "Hello").objects[0]
    again = generate("--json", "--temperature", "1", "--seed", str(first["seed"]), "Hello").objects[0]
    assert again["token_ids"] == first["token_ids"]


def test_a_draft_model(generate: Call, tiny_folder: Callable[..., Path]) -> None:
    drafter = ("--json", "--draft-model", tiny_folder())
    (answer,) = generate(*drafter, "--decoder", "draft", "Hello").objects
    assert answer["tokens_per_forward"] >= 2, "the model drafts for itself"
    (automatic,) = generate(*drafter, "Hello").objects
    assert (automatic["decoder"], automatic["token_ids"]) == ("auto", answer["token_ids"])


def test_two_stop_strings(generate: Call) -> None:
    text = generate("--json", "--max-tokens", "60", "Hello").objects[0]["text"]
    letters = [letter for letter in dict.fromkeys(text) if letter.isascii() and letter.isalnum()]
    early, late = letters[0], letters[1]
    for stops in (("--stop", early, "--stop", late), ("--stop", late, "--stop", early)):
        (answer,) = generate("--json", "--max-tokens", "60", *stops, "Hello").objects
        assert (answer["text"], answer["finish_reason"]) == (text[: text.index(early)], "stop")
        assert_consistent(answer)


# Files of prompts


def test_prompts_file(generate: Call, tmp_path: Path) -> None:
    prompts = ["One", "Two and a half", "Three\u2028lines", "Größe", "Five " * 20]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    entries = [*({"prompt": prompt} for prompt in prompts), {"messages": chat}]
    file = write_lines(tmp_path, "\ufeff", entries[0], "   ", *(json.dumps(e, ensure_ascii=False) for e in entries[1:]))
    alone = generate("--json", "--prompts", file)
    batched = generate("--json", "--batch", "3", "--prompts", file)
    assert (alone.status, alone.err, batched.status, batched.err) == (0, "", 0, "")
    texts = [answer["text"] for answer in alone.objects]
    assert [answer["text"] for answer in batched.objects] == texts
    assert texts[:-1] == [generate("--json", prompt).objects[0]["text"] for prompt in prompts]
    assert len(set(texts)) == len(entries)
    for answer in alone.objects:
        assert_consistent(answer)


def test_prompts_file_for_people(generate: Call, tmp_path: Path) -> None:
    file = write_lines(tmp_path, {"prompt": "One"}, {"messages": [{"role": "user", "content": "Two"}]})
    run = generate("--prompts", file)
    assert (run.status, run.err) == (0, "")
    assert run.out.count("[auto (torch, host's steps), exact, finished by length]\n") == 2
    for prompt in ("One", "Two"):
        assert f">>> {prompt}\n{generate(prompt).out}[{TOKENS} tokens in " in run.out


# Models and races


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model on this machine, but for one in the hub's cache."""
    from huggingface_hub import constants

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(bytes(3_000_000))
    return tmp_path


def test_models(empty_caches: Path, call: Call) -> None:
    run = call("models")
    assert (run.status, run.err) == (0, "")
    header, builtin, from_hub = run.out.splitlines()
    assert header.split() == ["model", "size", "where"]
    assert re.fullmatch(rf"smollm2 +fetched at first use  {empty_caches}/cache/.*{FOLDER}", builtin)
    assert re.fullmatch(rf"org/name +3 MB +{empty_caches}/hub/.*/1", from_hub)


def test_models_as_json(empty_caches: Path, call: Call) -> None:
    builtin, from_hub = call("models", "--json").objects
    assert (builtin["name"], builtin["here"], builtin["bytes"]) == ("smollm2", False, 0)
    assert (from_hub["name"], from_hub["here"], from_hub["bytes"]) == ("org/name", True, 3_000_000)
    assert Path(from_hub["path"]) == empty_caches / "hub/models--org--name/snapshots/1"


def test_race(generate: Call) -> None:
    run = generate("--race", "Hello there")
    assert (run.status, run.err) == (0, "")
    assert "─ one token at a time ─" in run.out
    assert "─ several: auto ─" in run.out
    assert run.out.count(f"{TOKENS} tokens / ") == 2
    assert flat(run.out).count("torch, host's") == 2
    assert re.search(rf"^speed-up \d+\.\d\dx, answers identical, all {TOKENS} tokens \(.*\)$", run.out, re.MULTILINE)


def test_race_as_json(generate: Call, tiny_folder: Callable[..., Path]) -> None:
    drafter = ("--decoder", "draft", "--draft-model", tiny_folder(seed=1))
    run = generate("--race", "--json", *drafter, "--temperature", "0.8", "--seed", "5", "Hello there")
    (report,) = run.objects
    assert run.status == 0
    assert (report["decoder"], report["identical"], report["first_difference"]) == ("draft", True, None)
    assert (report["tokens"], report["speed_up"] > 0) == (TOKENS, True)
    assert report["path"] == report["plain_path"] == "torch, host's steps"
    assert "speed-up" in run.err


RACES = ({"prompt": "Hello there", "category": "greeting"}, {"messages": [{"role": "user", "content": "Two\nrivers"}]})


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("two  words", 20, "two words"), ("two words more", 10, "two words…"), ("two words more", 9, "two…"),
        ("onelongword", 5, "onel…"), ("长的句子没有空格", 5, "长的句子…"), ("", 5, ""),
    ],
)  # fmt: skip
def test_labels_are_cut_by_words_or_characters(text: str, most: int, shown: str) -> None:
    assert shortened(text, most) == shown and len(shown) <= most


def test_races_on_several_prompts(generate: Call, tmp_path: Path) -> None:
    run = generate("--race", "--prompts", write_lines(tmp_path, *RACES))
    assert (run.status, run.err) == (0, "")
    assert run.out.count("─ one token at a time ─") == run.out.count("─ several: auto ─") == 2
    assert "greeting: Hello there\n" in run.out and "\nTwo rivers\n" in run.out, "which prompt it is, before its race"
    for label in ("greeting", "Two rivers"):
        row = rf"^{label} +\d+ tokens/s +\d+ tokens/s +\d+\.\d\dx +\d\.\d\d +identical *$"
        assert re.search(row, run.out, re.MULTILINE)
    last = run.out.splitlines()[-1]
    assert re.fullmatch(r"speed-up: greeting \d+\.\d\dx, Two rivers \d+\.\d\dx; all answers identical", last)


def test_races_on_several_prompts_as_json(generate: Call, tmp_path: Path) -> None:
    run = generate("--race", "--json", "--prompts", write_lines(tmp_path, *RACES))
    assert run.status == 0
    assert [report["label"] for report in run.objects] == ["greeting", "Two rivers"]
    for report in run.objects:
        assert (report["identical"], report["tokens"]) == (True, TOKENS)
        assert report["speed_up"] == pytest.approx(report["tokens_per_s"] / report["plain_tokens_per_s"], rel=0.01)
    assert "speed-up: greeting" in run.err


def test_a_race_whose_answers_differ_fails_after_all_were_run(
    generate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = iter((3, None))
    monkeypatch.setattr(race_report, "first_difference", lambda plain, other: next(places))
    run = generate("--race", "--prompts", write_lines(tmp_path, *RACES))
    assert run.status == 1
    assert "differ at 3" in run.out
    assert run.out.splitlines()[-1].endswith("; 1 of 2 answers identical")


def test_a_bad_prompt_is_told_before_the_first_race(generate: Call, tmp_path: Path) -> None:
    file = write_lines(tmp_path, "Hello", "a" * CONTEXT)
    run = generate("--race", "--prompts", file)
    assert_refused(run, f"{file}, line 2", str(CONTEXT))
    assert run.out == ""


def test_the_lane_behind_runs_next_and_either_may_begin() -> None:
    ran: list[str] = []

    class Lane(RaceLane):
        def take_turn(self) -> None:
            ran.append(self.title)
            self.seconds += 2 if self.title == "slow" else 1
            self.done = self.seconds >= 4

    for order, turns in (
        ("slow fast", "slow fast fast slow fast fast"),
        ("fast slow", "fast slow fast fast slow fast"),
    ):
        ran.clear()
        _run([Lane(title, cast(Any, None)) for title in order.split()], lambda: None)
        assert ran == turns.split()


@pytest.mark.parametrize(
    ("plain", "other", "place"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1,), 1), ((), (5,), 0), ((), (), None)],
)
def test_where_answers_part(plain: tuple[int, ...], other: tuple[int, ...], place: int | None) -> None:
    assert first_difference(plain, other) == place


# Adapters, and decoders that change the text


def test_an_adapter(generate: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder())))
    (plain,) = generate("--json", "--decoder", "autoregressive", "abc").objects
    for arguments in ((), ("--decoder", "self", "--k", "2"), ("--decoder", "self")):
        (drafted,) = generate("--json", "--adapter", tmp_path, *arguments, "abc").objects
        assert (drafted["decoder"], drafted["exact"]) == (arguments[1] if arguments else "auto", True)
        assert drafted["token_ids"] == plain["token_ids"]
    (without,) = generate("--json", "--adapter", "none", "abc").objects
    assert without["token_ids"] == plain["token_ids"]
    raced = generate("--json", "--race", "--adapter", tmp_path, "--decoder", "self", "abc")
    assert raced.objects[0]["decoder"] == "self"
    assert raced.objects[0]["identical"]
    for decoder in ("self", "static"):
        refused = generate("--adapter", tmp_path, "--decoder", decoder, "--k", "5", "abc")
        assert_refused(refused, "k must be at most 4", "adapter")
    other = ("--json", "--model", tiny_folder("llama", seed=1))  # of the same shape: it drafts, if not as well
    (drafted,), (plain,) = (
        generate(*other, *arguments, "abc").objects
        for arguments in (("--adapter", tmp_path, "--decoder", "self"), ("--decoder", "autoregressive"))
    )
    assert drafted["token_ids"] == plain["token_ids"]


UNVERIFIED = {"adaptive": ("--threshold", "0", "--k-max", "4"), "static": ("--k", "4")}


@pytest.mark.parametrize("decoder", UNVERIFIED)
def test_what_is_not_verified_says_so(
    decoder: str, generate: Call, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder())))
    chosen = ("--adapter", tmp_path, "--decoder", decoder, *UNVERIFIED[decoder], "abc")
    (plain,) = generate("--json", "--decoder", "autoregressive", "abc").objects
    (answer,) = generate("--json", *chosen).objects
    assert (answer["decoder"], answer["exact"], answer["tokens_per_forward"]) == (decoder, False, 4)
    assert answer["token_ids"] != plain["token_ids"], "a random adapter knows nothing"
    assert ", not exact, finished by " in generate(*chosen).err
    assert "\nnot exact    with respect to " in generate("--stats", *chosen).err
    raced = generate("--race", "--json", *chosen)
    (report,) = raced.objects
    assert (raced.status, report["exact"], report["identical"]) == (0, False, False), "nobody said that it would be"


@pytest.mark.parametrize("decoder", ["self", "adaptive", "static"])
def test_a_model_that_stands_alone(decoder: str, generate: Call, tiny_folder: Callable[..., Path]) -> None:
    model = ("--json", "--model", tiny_folder("llama", mask_token_id=259))
    (answer,) = generate(*model, "--decoder", decoder, "abc").objects
    assert (answer["decoder"], answer["exact"], answer["tokens"]) == (decoder, decoder == "self", TOKENS)
    if decoder == "self":
        assert answer["token_ids"] == generate(*model, "--decoder", "autoregressive", "abc").objects[0]["token_ids"]


@pytest.mark.parametrize("token", [260, -1, "mask", True])
def test_a_mask_token_that_is_none(token: object, generate: Call, tiny_folder: Callable[..., Path], tmp_path) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    configure(folder, mask_token_id=token)
    assert_refused(generate("--model", folder, "x"), str(folder), "mask_token_id", repr(token), "0 to 259")


def test_explain(generate: Call, tmp_path: Path) -> None:
    """After the answer, beside it; in JSON within it."""
    explained = "ngram: torch, host's steps; no planner"
    ngram = ("--decoder", "ngram", "--explain")
    run = generate(*ngram, "Hello")
    assert run.out == generate("--decoder", "ngram", "Hello").out
    assert run.err.splitlines()[2:] == [explained]
    assert generate("--json", *ngram, "Hello").objects[0]["explain"] == [explained]
    file = write_lines(tmp_path, {"prompt": "One"}, {"prompt": "Two"})
    assert generate(*ngram, "--prompts", file).err == f"{explained}\n"
    run = generate("--json", *ngram, "--prompts", file)
    assert ([answer["explain"] for answer in run.objects], run.err) == ([[explained]] * 2, "")


# What cannot be used


# Arguments, and what the message must name.

BAD_OPTIONS: dict[str, tuple[str, ...]] = {
    "--model nope x": ("'nope'", "smollm2", "stridelm models"),
    "--model ./nowhere x": ("'./nowhere'",),
    "--model missing.gguf x": ("missing.gguf: no such file",),
    "--model some-org/some-model x": ("'some-org/some-model'", "HF_HUB_OFFLINE"),
    "--draft-model nope x": ("'nope'",),
    "--device meta x": ("'meta'",),
    "--cache-tokens 2147483648 x": ("cache_tokens",),
    "--temperature nan x": ("temperature", "nan"),
    "--temperature inf x": ("temperature", "inf"),
    "--temperature -0.5 x": ("temperature", "-0.5"),
    "--temperature 101 x": ("temperature", "101"),
    "--temperature hot x": ("--temperature",),
    "--top-p 0 x": ("top_p",),
    "--top-p 1.5 x": ("top_p", "1.5"),
    "--top-p nan x": ("top_p", "nan"),
    "--top-k -1 x": ("top_k", "-1"),
    "--top-k 1.5 x": ("--top-k",),
    "--min-p -0.1 x": ("min_p", "-0.1"),
    "--min-p 1.1 x": ("min_p", "1.1"),
    "--min-p nan x": ("min_p", "nan"),
    "--repetition-penalty 0 x": ("repetition_penalty",),
    "--presence-penalty nan x": ("presence_penalty", "nan"),
    "--frequency-penalty 1000 x": ("frequency_penalty", "1000"),
    "--max-tokens 0 x": ("max_tokens", "0"),
    "--max-tokens -1 x": ("max_tokens", "-1"),
    "--seed -1 x": ("seed", "-1"),
    "--seed 18446744073709551616 x": ("seed", "18446744073709551616"),
    "--threads -1 x": ("threads", "-1"),
    "--cache-tokens 1 x": ("cache_tokens", "1"),
    "--cache-tokens 32 --max-tokens 100 x": ("KV cache", "--max-tokens", "--cache-tokens"),
    "--dtype int3 x": ("'int3'", "float32"),
    "--device gpu9 x": ("'gpu9'", "cpu"),
    "--adapter folder x": ("folder", "adapter.json"),
    "--batch 0 x": ("--batch", "0"),
    "--batch 2 x": ("--batch", "--prompts"),
    "--race --decoder autoregressive x": ("--race", "--decoder"),
    "--race --temperature 0.8 x": ("--race", "--seed"),
    "--race --batch 2 --prompts file": ("--batch", "--race"),
    "--race --explain x": ("--explain", "--race"),
    "--race --stats x": ("--stats", "--race"),
    "--json --stats x": ("--stats", "--json"),
    "--prompts file x": ("--prompts",),
    "--prompts missing.jsonl": ("missing.jsonl", "No such file"),
    "--temprature 1 x": ("--temprature", "--temperature", "stridelm generate --help"),
    "--seed": ("--seed",),
    "one two": ("two", "quotes"),
}


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_bad_options(arguments: str, generate: Call) -> None:
    assert_refused(generate(*arguments.split()), *BAD_OPTIONS[arguments])


NEEDS_MASKS = ("--adapter", "stridelm train", "mask_token_id")
BAD_DECODING: dict[str, tuple[str, ...]] = {
    "--decoder fast": ("'fast'", *DECODERS),
    "--decoder draft": ("draft", "--draft-model"),
    "--decoder self": ("self", *NEEDS_MASKS),
    "--decoder self --adapter none": ("self", *NEEDS_MASKS),
    "--decoder adaptive": ("adaptive", *NEEDS_MASKS),
    "--decoder adaptive --adapter none": ("adaptive", *NEEDS_MASKS),
    "--decoder adaptive --model smollm2 --adapter none": ("adaptive", *NEEDS_MASKS),
    "--decoder adaptive --model missing.gguf": ("adaptive", *NEEDS_MASKS),
    "--decoder static --adapter none": ("static", *NEEDS_MASKS),
    "--decoder adaptive --threshold 1.1": ("threshold", "between 0", "1.1"),
    "--decoder adaptive --threshold -0.1": ("threshold", "-0.1"),
    "--decoder adaptive --threshold nan": ("threshold", "nan"),
    "--decoder adaptive --threshold high": ("--threshold",),
    "--decoder adaptive --k-max 0": ("k_max", "between 1 and 64", "0"),
    "--decoder adaptive --k-max 65": ("k_max", "65"),
    "--decoder adaptive --k 4": ("adaptive has no --k:", "--k-max, --threshold"),
    "--decoder static --threshold 0.5": ("static has no --threshold", "--k"),
    "--decoder static --k 0": ("k must be", "0"),
    "--decoder self --threshold 0.5": ("self has no --threshold", "--k, --nodes, --tolerance"),
    "--decoder self --k-max 4": ("self has no --k-max",),
    "--decoder autoregressive --k 4": ("autoregressive has no --k", "no settings of its own"),
    "--decoder autoregressive --tolerance 0.5": ("autoregressive has no --tolerance",),
    "--decoder ngram --nodes 4": ("ngram has no --nodes",),
    "--tolerance 1": ("tolerance", "below 1", "1.0"),
    "--tolerance -0.1": ("tolerance", "at least 0", "-0.1"),
    "--tolerance nan": ("tolerance", "nan"),
    "--k 0": ("k must be", "between 1 and 64", "0"),
    "--k 65": ("k must be", "65"),
    "--k 1.5": ("--k",),
    "--nodes 0": ("nodes must be", "between 1 and 256", "0"),
    "--nodes 257": ("nodes must be", "257"),
}


@pytest.mark.parametrize("arguments", BAD_DECODING)
def test_bad_decoding_is_refused_before_anything_is_loaded(
    arguments: str, generate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stridelm.backends.torch.converted.load_checkpoint", raising(AssertionError("loaded")))
    monkeypatch.setattr("stridelm.backends.network.load_adapter", raising(AssertionError("loaded")))
    assert_refused(generate(*arguments.split(), "x"), *BAD_DECODING[arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(generate: Call) -> None:
    assert_refused(generate("--device", "cuda", "x"), "'cuda'", "cpu")


@pytest.mark.parametrize("arguments", [["generat", "x"], ["generat"], ["--jsn"]])
def test_unknown_command(arguments: list[str], call: Call) -> None:
    assert_refused(call(*arguments), arguments[0], "stridelm --help")


def test_bad_prompts(generate: Call) -> None:
    assert_refused(generate(""), "prompt is empty")
    assert_refused(generate(" \n\t "), "prompt is empty")
    assert_refused(generate("--raw", " "), "prompt is empty")
    assert_refused(generate(stdin=b""), "prompt is empty")
    assert_refused(generate(stdin=b"\xff\xfe"), "standard input", "UTF-8")
    assert_refused(generate("a" * CONTEXT), str(CONTEXT), "shorten")


class Terminal(io.StringIO):
    """A keyboard that nobody types on."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stdin", [Terminal(), None])
def test_no_prompt_at_all(stdin: TextIO | None, call: Call) -> None:
    assert_refused(call("generate", stdin=stdin), "no prompt")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ("no weights",)),
    "pickled weights": (lambda folder: (folder / "model.safetensors").rename(folder / "a.bin"), ("a.bin", "pickle")),
    "no config": (lambda folder: (folder / "config.json").unlink(), ("no config.json",)),
    "broken config": (lambda folder: cut(folder / "config.json"), ("config",)),
    "broken tokenizer": (lambda folder: cut(folder / "tokenizer.json"), ("tokenizer",)),
    "cut weights": (lambda folder: cut(folder / "model.safetensors"), ("model.safetensors", "fetch it again")),
    "junk for weights": (lambda folder: (folder / "model.safetensors").write_text("junk"), ("model.safetensors",)),
    "more layers than weights": (lambda folder: configure(folder, num_hidden_layers=4, layer_types=None), (".2.",)),
    "fewer layers than weights": (lambda folder: configure(folder, num_hidden_layers=1, layer_types=None), (".1.",)),
    "another width": (lambda folder: configure(folder, hidden_size=64), ("config.json",)),
    "text for a number": (lambda folder: configure(folder, hidden_size="x"), ("config",)),
    "no heads": (lambda folder: configure(folder, num_attention_heads=0), ("config",)),
    "padding outside the vocabulary": (lambda folder: configure(folder, pad_token_id=9999), ("llama",)),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_text(""), ("model.safetensors",)),
}


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("damage", BAD_FOLDERS)
def test_bad_folders(damage: str, generate: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    spoil, words = BAD_FOLDERS[damage]
    spoil(folder)
    assert_refused(generate("--model", folder, "x"), str(folder), *words)


@pytest.mark.parametrize("content", [b"", b"GGUF", struct.pack("<4sIQQ", b"GGUF", 3, 10, 10), b"GGUF" * 1000])
def test_cut_gguf(content: bytes, generate: Call, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert_refused(generate("--model", file, "x"), str(file), "GGUF")


def test_draft_model_of_another_vocabulary(generate: Call, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "other"))
    byte_tokenizer(("another",)).save_pretrained(folder)
    for decoder in ("auto", "draft"):
        assert_refused(generate("--decoder", decoder, "--draft-model", folder, "x"), str(folder), "vocabulary")


GOOD = {"prompt": "Fine"}
BAD_LINES: dict[str, tuple[object, tuple[str, ...]]] = {
    "not JSON": ("{prompt: 1}", ("not JSON",)),
    "too deep": ("[" * 100_000, ("not JSON",)),
    "neither": ({"text": "x"}, ("prompt", "messages")),
    "not an object": ([1], ("prompt", "messages")),
    "prompt is no text": ({"prompt": 5}, ("prompt",)),
    "prompt is empty": ({"prompt": " "}, ("prompt",)),
    "messages are no list": ({"messages": "x"}, ("messages",)),
    "messages are empty": ({"messages": []}, ("messages",)),
    "message is text": ({"messages": ["x"]}, ("role", "content")),
    "message without content": ({"messages": [{"role": "user"}]}, ("role", "content")),
    "content is no text": ({"messages": [{"role": "user", "content": 1}]}, ("role", "content")),
    "over the context": ({"prompt": "a" * CONTEXT}, (str(CONTEXT), "shorten")),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_lines_cost_no_answer(line: str, generate: Call, tmp_path: Path) -> None:
    entry, words = BAD_LINES[line]
    file = write_lines(tmp_path, GOOD, "", entry, GOOD)
    assert_refused(generate("--json", "--prompts", file), f"{file}, line 3: ", *words)


def test_bad_prompt_files(generate: Call, tmp_path: Path) -> None:
    file = write_lines(tmp_path)
    assert_refused(generate("--prompts", file), f"{file}: no prompts")
    file.write_text("\n \n")
    assert_refused(generate("--prompts", file), f"{file}: no prompts")
    file.write_bytes(b'{"prompt": "\xff"}')
    assert_refused(generate("--prompts", file), f"{file}: cannot be read")
    assert_refused(generate("--prompts", tmp_path), f"{tmp_path}: cannot be read")


def test_what_fits_no_cache_costs_no_answer(generate: Call, tmp_path: Path) -> None:
    file = write_lines(tmp_path, GOOD, {"prompt": "a" * 300})
    assert_refused(generate("--json", "--cache-tokens", "128", "--prompts", file), "KV cache")


def test_messages_are_not_raw(generate: Call, tmp_path: Path) -> None:
    file = write_lines(tmp_path, GOOD, {"messages": [{"role": "user", "content": "x"}]})
    assert_refused(generate("--json", "--raw", "--prompts", file), f"{file}, line 2: ", "raw")


# Endings


@pytest.mark.parametrize(
    "arguments",
    [
        ["--debug", "generate", "--top-p", "nan", "x"],
        ["generate", "--debug", "--top-p", "nan", "x"],
        ["generate", "--top-p", "nan", "x", "--debug"],
    ],
)
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    done = run_script(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "InputError: top_p must be" in done.stderr.splitlines()[-1]


def test_debug_raises_usage_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["stridelm", "generate", "--no-such-option", "--debug"])
    with pytest.raises(cli_endings._UsageError):
        cli.main()


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_command, "run", raising(ZeroDivisionError()))
    monkeypatch.setattr(sys, "argv", ["stridelm", "generate", "x"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def raising(error: BaseException) -> Callable[..., None]:
    def run(*_: object) -> None:
        raise error

    return run


def test_interrupt(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_command, "run", raising(KeyboardInterrupt()))
    run = call("generate", "x")
    assert (run.status, run.out, run.err.strip()) == (130, "", "")


def test_a_folder_that_may_not_be_written(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_command, "run", raising(PermissionError(13, "Permission denied", "/root/x")))
    assert_refused(call("generate", "x"), "/root/x: Permission denied")


def test_the_script_answers_and_refuses(tiny_folder: Callable[..., Path]) -> None:
    done = run_script("generate", "--model", tiny_folder(), "--device", "cpu", "--max-tokens", "8", "--json", "Hello")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["tokens"] == 8
    done = run_script("generate", "--top-k", "-1", "Hello")
    assert_refused(Run(done.returncode, done.stdout, done.stderr), "top_k")


def test_a_reader_that_leaves(tiny_folder: Callable[..., Path]) -> None:
    arguments = ["generate", "--model", str(tiny_folder()), "--device", "cpu", "--max-tokens", "300", "Hello"]
    command = f"{shlex.join([str(SCRIPT), *arguments])} | head -c 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=PATIENCE)
    assert len(done.stdout) == 1
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_a_reader_that_has_left(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_script(*arguments, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = run_script("--version", stdout=full)
    assert_refused(Run(done.returncode, "", done.stderr), "No space left on device")


def test_a_terminal_of_few_letters(generate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextStream, "push", lambda stream, token: "ü")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert generate("--max-tokens", "3", "Hello").status == 0
    assert narrow.buffer.getvalue() == b"???\n"  # type: ignore[attr-defined]
