"""`stridelm train`: what a run leaves, that it learns, and that a killed run comes to the same."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import stridelm
from command_line import Call, assert_refused
from killed import NEVER, Moment, train_until
from stridelm import LoadSettings, SamplingParams
from stridelm.decode.draft_prior import draft_priors
from stridelm.models.adapter import load_adapter, save_adapter
from stridelm.settings import PLAIN
from stridelm.stepper import mask_priors
from stridelm.train.settings import TrainSettings
from training import QUESTIONS, SETTINGS, contents, metrics, options, outcome, small_run, write_questions

SCRIPT = Path(sys.executable).with_name("stridelm")


@pytest.fixture(scope="module")
def arguments(tiny_folder: Callable[..., Path]) -> list[str]:
    return small_run(tiny_folder())


# What a run leaves


def test_files(whole: Path) -> None:
    left = {path.name for path in whole.iterdir()}
    adapter = {"adapter.json", "adapter-00001-of-00001.safetensors"}
    assert left - {"tensorboard", "report.png"} == {*adapter, "train.json", "metrics.jsonl", "README.md", "rollouts"}


def test_record(whole: Path, arguments: list[str]) -> None:
    record = json.loads((whole / "train.json").read_text())
    assert record["settings"] == asdict(TrainSettings(**SETTINGS))
    assert record["settings"]["seed"] == 0
    assert record["command"].split() == ["stridelm", "train", *arguments]
    assert (record["model"], record["prompts"]) == (arguments[1], "questions.txt")
    assert record["commit"] is None or len(record["commit"].removesuffix("-dirty")) >= 12
    assert record["stridelm"] == stridelm.__version__
    assert record["versions"].keys() == {"torch", "transformers", "tokenizers", "safetensors", "numpy"}
    assert record["machine"]["device"] == "CPU"
    data = record["data"]
    assert (data["prompts"], data["prompts_given"], data["answers"]) == (len(QUESTIONS),) * 3
    assert data["answer_tokens"] <= len(QUESTIONS) * SETTINGS["answer_tokens"]
    assert data["fingerprint"] == json.loads((whole / "adapter.json").read_text())["fingerprint"]


def test_the_prior_of_its_drafts(whole: Path, arguments: list[str]) -> None:
    """Made from the held-out answers: these few, of a model that hardly learned, move the package's a little."""
    greedy, sampled = mask_priors(json.loads((whole / "adapter.json").read_text())["draft_prior"])
    for own, package in zip((greedy, sampled), draft_priors(), strict=True):
        assert own.scored != package.scored and own.scored == pytest.approx(package.scored, abs=1)
        assert own.ease != package.ease
    model = stridelm.load(arguments[1], adapter=whole, settings=LoadSettings(device="cpu"))
    gate = model.loaded.forward.gate
    assert gate is not None and gate.prior == (greedy, sampled)


def test_metrics(whole: Path) -> None:
    entries = metrics(whole)
    assert [entry["step"] for entry in entries if "loss" in entry] == [5, 10, 15, 20]
    assert [entry["step"] for entry in entries if "acceptance" in entry] == [0, 10, 20]
    for entry in entries:
        if "loss" in entry:
            assert entry["tokens_per_second"] == pytest.approx(128 * entry["steps_per_second"])
        else:
            assert 1 <= entry["tokens_per_forward"] <= SETTINGS["k"]
            assert len(entry["acceptance"]) == TrainSettings(**SETTINGS).drafts


def test_card(whole: Path, arguments: list[str]) -> None:
    card = (whole / "README.md").read_text()
    last = metrics(whole)[-1]
    assert f"**{last['tokens_per_forward']:.2f} tokens per forward" in card
    assert f"stridelm train {' '.join(arguments)}\n" in card
    assert f"{len(QUESTIONS)} from questions.txt, 0 made up" in card


def test_picture(whole: Path) -> None:
    pytest.importorskip("matplotlib")
    assert (whole / "report.png").read_bytes().startswith(b"\x89PNG\r\n")


def tensorboard_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard(whole: Path) -> None:
    pytest.importorskip("tensorboard")
    scalars = tensorboard_scalars(whole)
    assert scalars.keys() >= {"loss", "learning_rate", "tokens_per_forward", "acceptance/1", "acceptance/2"}
    expected = [(entry["step"], pytest.approx(entry["loss"])) for entry in metrics(whole) if "loss" in entry]
    assert scalars["loss"] == expected


def test_the_adapter_changes_no_answer(whole: Path, arguments: list[str]) -> None:
    model = stridelm.load(arguments[1], adapter=whole, settings=LoadSettings(device="cpu"))
    for params in (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.8, seed=3)):
        for question in QUESTIONS[:3]:
            plain = model.generate(question, params, decoder=PLAIN)
            drafted = model.generate(question, params)
            assert (drafted.decoder, drafted.token_ids) == ("auto", plain.token_ids)


def test_the_answers_on_the_screen(train: Call) -> None:
    run = train()
    last = metrics(Path("run"))[-1]
    assert run.status == 0
    assert run.out.startswith(f"run: {last['tokens_per_forward']:.2f} tokens per forward on 1 held-out prompts, ")
    assert "try it: stridelm generate --model " in run.out
    assert f"writing answers {len(QUESTIONS)}/{len(QUESTIONS)}\n" in run.err
    assert "training 20/20, loss " in run.err


def test_without_matplotlib_and_tensorboard(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib.figure", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    run = train()
    assert run.status == 0
    assert "matplotlib is not installed" in run.out
    assert Path("run/adapter.json").is_file()
    assert not Path("run/report.png").exists() and not Path("run/tensorboard").exists()


def test_it_learns(train: Call) -> None:
    larger = options(
        steps=60, learning_rate=0.02, up_rate=1, tail_heads=0, rank=16, texts=8, anchors=16, checkpoint_every=60
    )
    assert train(*larger).status == 0
    losses = [entry["loss"] for entry in metrics(Path("run")) if "loss" in entry]
    assert losses[-1] < losses[0] / 2, losses


# Killed and resumed

MOMENTS = [
    "os.rename .run.starting",
    "os.mkdir run/rollouts",
    "os.rename run/rollouts/.answers-00001.safetensors.writing",
    "open run/.metrics.jsonl.writing",
    "os.chmod run/.checkpoint-000005.safetensors.writing",
    "os.remove run/checkpoint-000010.safetensors",
    "os.rename run/.writing/adapter.json",
    "os.remove run/checkpoint-000020.safetensors",
]


def resume(folder: Path, arguments: list[str]) -> None:
    """Go on; a run that was killed before it had a folder is started again."""
    more = ["--resume"] if (folder / "run").exists() else []
    assert train_until(NEVER, folder, [*arguments, *more]) == 0


def assert_the_same(folder: Path, whole: Path) -> None:
    assert outcome(folder / "run") == outcome(whole)
    assert sorted(path.name for path in folder.iterdir()) == ["questions.txt", "run"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed(moment: Moment, whole: Path, tmp_path: Path, arguments: list[str]) -> None:
    write_questions(tmp_path)
    assert train_until(moment, tmp_path, arguments) == -9
    resume(tmp_path, arguments)
    assert_the_same(tmp_path, whole)


@pytest.mark.slow
def test_killed_at_every_change_on_the_disk(whole: Path, tmp_path: Path, arguments: list[str]) -> None:
    for moment in range(1, 1000):
        folder = tmp_path / str(moment)
        folder.mkdir()
        write_questions(folder)
        status = train_until(moment, folder, arguments)
        if status == 0:
            assert moment > 50, "a run makes more changes than that"
            return
        resume(folder, arguments)
        assert_the_same(folder, whole)


def test_killed_again_and_again(whole: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Each time a little later, as a resumed run has to come further than the one before."""
    write_questions(tmp_path)
    moments = iter(range(12, 200, 12))
    assert train_until(next(moments), tmp_path, arguments) == -9
    while train_until(next(moments), tmp_path, [*arguments, "--resume"]) == -9:
        pass
    assert_the_same(tmp_path, whole)
    assert len(json.loads((tmp_path / "run" / "train.json").read_text())["resumed"]) > 2


def test_what_is_half_written_is_written_again(whole: Path, tmp_path: Path, arguments: list[str]) -> None:
    write_questions(tmp_path)
    assert train_until("os.chmod run/.checkpoint-000015.safetensors.writing", tmp_path, arguments) == -9
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 16, "lo')
    for name in (".checkpoint-000015.safetensors.writing", ".README.md.writing", ".writing/adapter.json"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(b"half")
    resume(tmp_path, arguments)
    assert_the_same(tmp_path, whole)
    pytest.importorskip("tensorboard")
    assert tensorboard_scalars(tmp_path / "run")["loss"] == tensorboard_scalars(whole)["loss"]


@pytest.mark.slow
def test_the_script_killed_at_any_time(whole: Path, tmp_path: Path, arguments: list[str]) -> None:
    write_questions(tmp_path)
    seconds = 3.0
    while not (tmp_path / "run/adapter.json").exists() or list((tmp_path / "run").glob("checkpoint-*")):
        more = ["--resume"] if (tmp_path / "run").exists() else []
        process = subprocess.Popen([SCRIPT, "train", *arguments, *more], cwd=tmp_path, stderr=subprocess.DEVNULL)
        seconds *= 1.2
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
    assert_the_same(tmp_path, whole)


# From an earlier adapter


def test_goes_on_from_an_adapter(whole: Path, train: Call) -> None:
    """The first evaluation is the earlier run's last one, on the same held-out answers."""
    again = train("--start", whole, "--rollouts", whole / "rollouts", "--steps", "4", "--rank", "3")
    assert again.status == 0, again.err
    first = metrics(Path("run"))[0]
    assert first["step"] == 0
    assert first["acceptance"] == metrics(whole)[-1]["acceptance"]
    assert json.loads(Path("run/adapter.json").read_text())["rank"] == 3
    assert f"(`--start {whole}`)" in Path("run/README.md").read_text()


def test_an_adapter_of_another_form_is_refused(whole: Path, train: Call, tmp_path: Path) -> None:
    before = contents(tmp_path)
    done = train("--start", whole, "--k", "4", "--rank", "1", "--tail-heads", "2")
    assert_refused(done, "another form than the one to be trained: add --k 3 --rank 2 --tail-heads 4")
    assert_refused(train("--start", "own"), "no adapter comes with")
    assert contents(tmp_path) == before


def test_an_adapter_without_a_gate_is_refused(whole: Path, train: Call, tmp_path: Path) -> None:
    adapter = load_adapter(whole)
    save_adapter(tmp_path / "ungated", replace(adapter, is_gated=False))
    assert_refused(train("--start", "ungated"), "ungated: real rows pass through this adapter, too")
