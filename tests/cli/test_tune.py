"""`stridelm tune` and the profiles it writes: what is measured, what is chosen, what reads it. Never about seconds."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Call, Run, assert_refused
from stridelm.bench import tune as tune_command
from stridelm.bench.page.frontier_picture import frontier
from stridelm.bench.tune import MAX_PROMPTS, Sample, candidates, choose, summarize
from stridelm.light import install_command
from stridelm.models.adapter import save_adapter
from stridelm.params import InputError
from stridelm.profile import Measured, label, read_profile, write_profile
from stridelm.settings import AUTO, PLAIN, DecodeSettings
from tiny import load_tiny, random_adapter

TOKENS = 8


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("Hello there, hello there, hello\nabc\n")
    return file


@pytest.fixture
def tune(call: Call, tiny_folder: Callable[..., Path], prompts: Path) -> Call:
    """`stridelm tune` with a tiny model; what is given comes later and so prevails."""

    def run(*arguments: str | Path) -> Run:
        settings = ("--model", tiny_folder(), "--device", "cpu", "--max-tokens", TOKENS, "--rounds", 1)
        return call("tune", *settings, "--prompts", prompts, *arguments)

    return run


@pytest.fixture
def adapter(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    save_adapter(tmp_path / "adapter", random_adapter(load_tiny(tiny_folder())))
    return tmp_path / "adapter"


def measured(settings: DecodeSettings, speed_up: float, agreement: float = 1.0, *, exact: bool = True) -> Measured:
    return Measured(settings, speed_up, speed_up, speed_up, 1.0, 1.0, agreement, float(agreement == 1), exact, "p")


PLAINLY = measured(DecodeSettings(PLAIN), 1.0)
EXACT = measured(DecodeSettings("self", k=3), 1.5)
SLOWER = measured(DecodeSettings("ngram", k=4), 1.2)
LUCKY = measured(DecodeSettings(tolerance=0.1), 1.7, exact=False)
LOSSY = measured(DecodeSettings(tolerance=0.7), 1.8, 0.6, exact=False)
BAD = measured(DecodeSettings("static", k=3), 1.6, 0.1, exact=False)
ALL = [PLAINLY, SLOWER, EXACT, LUCKY, LOSSY, BAD]


# Choosing


@pytest.mark.parametrize(("agreement", "chosen"), [(1.0, EXACT), (0.99, LUCKY), (0.6, LOSSY), (0.0, LOSSY)])
def test_the_fastest_that_agrees_enough(agreement: float, chosen: Measured) -> None:
    assert choose(ALL, agreement) is chosen


def test_plain_decoding_where_nothing_is_faster() -> None:
    slow = measured(DecodeSettings(), 1.0)
    parts = measured(DecodeSettings("self", k=3), 2.0, 0.9)
    assert choose([PLAINLY, slow], 0.0) is PLAINLY
    assert choose([PLAINLY, slow, LUCKY, parts], 1.0) is PLAINLY, "a promise must be kept, too"


def test_frontier() -> None:
    assert frontier(ALL) == [LOSSY, LUCKY]
    assert frontier([PLAINLY]) == [PLAINLY]


def test_quartiles() -> None:
    samples = [
        Sample(speed_up, 1.0, 1.0, agreement, agreement == 1, True, 4, 3, "gpu")
        for speed_up, agreement in ((1, 1), (2, 0.5), (4, 0))
    ]
    found = summarize(DecodeSettings(), samples)
    assert (found.low, found.speed_up, found.high) == (1.5, 2, 3)
    assert (found.agreement, found.identical) == (0.5, pytest.approx(1 / 3))
    alone = summarize(DecodeSettings(), samples[1:2])
    assert (alone.low, alone.speed_up, alone.high) == (2, 2, 2)


@pytest.mark.parametrize(("has_draft", "mask_k"), [(False, 0), (True, 0), (False, 2), (True, 4), (True, 9)])
def test_candidates_are_what_the_model_can_do(has_draft: bool, mask_k: int) -> None:
    found = candidates(has_draft=has_draft, mask_k=mask_k)
    assert found[0] == DecodeSettings(PLAIN)
    assert len(set(found)) == len(found)
    for settings in found:
        settings.check(has_draft=has_draft, mask_k=mask_k)
    decoders = {settings.decoder for settings in found}
    expected = {AUTO, PLAIN, "ngram"} | ({"draft"} if has_draft else set())
    assert decoders == expected | ({"self", "adaptive", "static"} if mask_k else set())


# The command


def test_tune_and_generate(
    tune: Call, call: Call, adapter: Path, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out, draft = tmp_path / "new" / "tuned", ("--draft-model", tiny_folder(seed=1), "--adapter", adapter)
    run = tune("--out", out, *draft)
    assert (run.status, run.err) == (0, "")
    assert sorted(file.name for file in out.iterdir()) == ["frontier.png", "profile.json"]
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    profile = json.loads((out / "profile.json").read_text())
    everything = candidates(has_draft=True, mask_k=4)
    assert [DecodeSettings(**entry["decode"]) for entry in profile["measured"]] == everything
    for entry in profile["measured"]:
        lossy = {"tolerance", "threshold"} & entry["decode"].keys() or entry["decode"].get("decoder") == "static"
        assert entry["exact"] == (not lossy)
        if not lossy:
            assert (entry["agreement"], entry["identical"]) == (1, 1)
    assert (profile["prompts"], profile["max_tokens"], profile["rounds"], profile["agreement"]) == (2, TOKENS, 1, 1)
    assert profile["command"].startswith("stridelm tune --model ")
    chosen, fingerprint = read_profile(out / "profile.json")
    assert fingerprint == load_tiny(tiny_folder()).fingerprint
    assert next(entry["exact"] for entry in profile["measured"] if DecodeSettings(**entry["decode"]) == chosen)
    rows = [line[2:].split("  ")[0] for line in run.out.splitlines()[1 : len(everything) + 1]]
    assert sorted(rows) == sorted(map(label, everything))
    assert f"* chosen: {label(chosen)}\n" in run.out
    assert f'--profile {out}/profile.json "..."\n' in run.out
    model = ("--json", "--model", tiny_folder(), "--max-tokens", TOKENS, *draft)
    (answer,) = call("generate", *model, "--profile", out / "profile.json", "abc").objects
    (plain,) = call("generate", *model, "--decoder", PLAIN, "abc").objects
    assert (answer["decoder"], answer["token_ids"]) == (chosen.decoder, plain["token_ids"])


def test_a_lossy_one_can_be_chosen(tune: Call, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_command, "measure", lambda *_: ALL)
    for agreement, chosen in (("0", LOSSY), ("1", EXACT)):
        run = tune("--out", tmp_path / "tuned", "--adapter", adapter, "--agreement", agreement)
        assert run.status == 0
        assert read_profile(tmp_path / "tuned" / "profile.json")[0] == chosen.settings


def test_without_matplotlib(tune: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_command, "measure", lambda *_: ALL)
    assert tune("--out", tmp_path).status == 0
    assert (tmp_path / "frontier.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = tune("--out", tmp_path)
    assert (run.status, install_command("train") in run.out) == (0, True)
    assert not (tmp_path / "frontier.png").exists(), "it would show another run's figures"


def test_no_more_prompts_than_needed(tune: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(tune_command, "measure", lambda _, prompts, *rest: seen.extend(prompts) or ALL)
    file = tmp_path / "many.txt"
    file.write_text("".join(f"prompt {number}\n" for number in range(20)))
    run = tune("--out", tmp_path, "--prompts", file)
    assert run.err == f"{file}: the first {MAX_PROMPTS} of 20 prompts are used\n"
    assert seen == [f"prompt {number}" for number in range(MAX_PROMPTS)]


# What cannot be used

BAD_OPTIONS: dict[str, tuple[str, ...]] = {
    "--rounds 0": ("--rounds", "0"),
    "--max-tokens 1": ("--max-tokens", "between 2", "1"),
    "--agreement 1.1": ("--agreement", "1.1"),
    "--agreement -0.1": ("--agreement", "-0.1"),
    "--agreement nan": ("--agreement", "nan"),
    "--prompts missing.jsonl": ("missing.jsonl", "No such file"),
    "--out {prompts}": ("prompts.txt", "is a file"),
    "--out {prompts}/below": ("prompts.txt", "is a file"),
}


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_refused_before_anything_is_loaded(
    arguments: str, tune: Call, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("stridelm.backends.torch.converted.load_checkpoint")
    given = arguments.format(prompts=prompts).split()
    assert_refused(tune("--out", tmp_path / "tuned", *given), *BAD_OPTIONS[arguments])
    assert not (tmp_path / "tuned").exists()


def test_a_bad_prompt_costs_nothing(tune: Call, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("fine\n" + "a" * 600)
    assert_refused(tune("--out", tmp_path / "tuned", "--prompts", file), f"{file}, line 2: ", "shorten")
    assert not (tmp_path / "tuned").exists()


def test_options_that_are_needed(call: Call, prompts: Path, tmp_path: Path) -> None:
    assert_refused(call("tune", "--prompts", prompts), "--out")
    assert_refused(call("tune", "--out", tmp_path), "--prompts")


# Profiles

RECORD: dict[str, Any] = dict.fromkeys(
    ("model", "agreement", "prompts", "max_tokens", "rounds", "machine", "command"), None
)


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Path]:
    """A profile with these changes; a value of None takes a field out."""

    def make(settings: DecodeSettings = EXACT.settings, fingerprint: str = "f" * 64, **changes: object) -> Path:
        file = tmp_path / "profile.json"
        write_profile(file, settings, fingerprint, ALL, RECORD)
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
        return file

    return make


@pytest.mark.parametrize("settings", candidates(has_draft=True, mask_k=9), ids=label)
def test_what_is_written_is_read(settings: DecodeSettings, profile: Callable[..., Path], tmp_path: Path) -> None:
    assert read_profile(profile(settings)) == (settings, "f" * 64)
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]


BAD_PROFILES: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"format": "other"}, "not a profile"),
    "no format": ({"format": None}, "not a profile"),
    "another version": ({"version": 2}, "version 2"),
    "an unknown field": ({"speed": 1}, "'speed'"),
    "an unknown setting": ({"decode": {"kk": 3}}, "'kk'"),
    "no settings": ({"decode": None}, "decode"),
    "settings that are none": ({"decode": [3]}, "decode"),
    "no fingerprint": ({"fingerprint": None}, "fingerprint"),
    "an unknown decoder": ({"decode": {"decoder": "fast"}}, "'fast'"),
    "a decoder that is no text": ({"decode": {"decoder": ["self"]}}, "decoder must be text"),
    "a number that is none": ({"decode": {"k": True}}, "k must be a number"),
    "k as text": ({"decode": {"k": "3"}}, "k must be a number"),
    "k out of range": ({"decode": {"k": 65}}, "between 1 and 64"),
    "what the decoder does not take": ({"decode": {"decoder": "ngram", "nodes": 4}}, "ngram has no --nodes"),
    "tolerance that is no number": ({"decode": {"tolerance": float("nan")}}, "tolerance"),
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_bad_profiles(case: str, profile: Callable[..., Path]) -> None:
    changes, words = BAD_PROFILES[case]
    file = profile(**changes)
    with pytest.raises(InputError) as refused:
        read_profile(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000])
def test_damaged_profiles(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"^{file}: is (damaged|not a profile)"):
        read_profile(file)


def test_profiles_that_are_not_there(call: Call, tmp_path: Path) -> None:
    assert_refused(call("generate", "--profile", tmp_path / "none.json", "x"), "none.json", "stridelm tune")
    assert_refused(call("generate", "--profile", tmp_path, "x"), str(tmp_path), "profile.json")


@pytest.mark.parametrize("option", ["--decoder auto", "--k 3", "--nodes 4", "--tolerance 0", "--threshold 0.5"])
def test_a_profile_goes_with_no_decoding_option(option: str, call: Call, profile: Callable[..., Path]) -> None:
    given = option.split() if "threshold" not in option else ["--decoder", "adaptive", *option.split()]
    refused = call("generate", "--profile", profile(), *given, "x")
    assert_refused(refused, "--profile", given[0])


def test_a_profile_of_another_model(call: Call, profile: Callable[..., Path], tiny_folder: Callable[..., Path]) -> None:
    model = ("--model", tiny_folder(), "--max-tokens", TOKENS)
    file = profile(DecodeSettings("ngram", k=4))
    assert_refused(call("generate", *model, "--profile", file, "x"), str(file), "another model", str(tiny_folder()))
    file = profile(DecodeSettings("draft", k=4))
    assert_refused(call("generate", *model, "--profile", file, "x"), "--draft-model")
    file = profile(DecodeSettings("self", k=3))
    assert_refused(call("generate", *model, "--profile", file, "x"), "--adapter")
