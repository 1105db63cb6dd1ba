"""`--model stridelm` of lm-eval: what it answers is what lm-eval's own `hf` model and a naive forward answer."""

import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval.api.model", reason="lm-eval is not installed: pip install 'stridelm[bench]'")

import lm_eval.tasks
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from transformers import AutoTokenizer

from stridelm.bench import lm_eval as ours
from stridelm.bench.lm_eval import StrideLM
from stridelm.models.adapter import save_adapter
from stridelm.params import InputError
from suite import TinyFolder
from tiny import CONTEXT, load_tiny, plain_network, random_adapter

ROOT = Path(__file__).parent.parent.parent
TASKS = "bench/lm_eval"
PAIRS = [
    ("Question: What is the capital of France?\nAnswer:", " Paris"),
    ("Question: What is the capital of France?\nAnswer: ", "Berlin"),
    ("Größe, naïve", ", 中文 🙂"),
    ("", "begins with nothing"),
    ("too long " * CONTEXT, "for the context"),
]
TEXTS = ["A short text.", "A text of more than one window. " * 40, "x" * (CONTEXT - 1)]
GREEDY = {"until": ["\n\n", "q"], "max_gen_toks": 24, "do_sample": False}
SAMPLED = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.0, "top_p": 0.9}
PROMPTS = ["Question: What is it?\nAnswer:", "Once upon a time", "1, 2, 3, 1, 2, 3, 1, 2,", "Größe", "0 0 0 0 0 0"]
Make = Callable[..., StrideLM]


def asked(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def answers(model: Any, settings: dict[str, Any], prompts: list[str] = PROMPTS) -> list[str]:
    return model.generate_until(asked("generate_until", *((prompt, dict(settings)) for prompt in prompts)))


@pytest.fixture
def make(tiny_folder: TinyFolder) -> Make:
    return partial(StrideLM, model=str(tiny_folder()), device="cpu", cache_tokens=4096)


@pytest.fixture
def hugging_face(tiny_folder: TinyFolder) -> Any:
    """lm-eval's own. It reads one token more than its length: ours counts that one."""
    pytest.importorskip("accelerate", reason="lm-eval's hf model needs accelerate")
    given = {"pretrained": str(tiny_folder()), "device": "cpu", "dtype": "float32", "max_length": CONTEXT - 1}
    return get_model("hf").create_from_arg_obj(given)


def test_likelihoods_are_those_of_lm_evals_own_model(make: Make, hugging_face: Any) -> None:
    requests = asked("loglikelihood", *PAIRS)
    found, expected = make(batch_size=3).loglikelihood(requests), hugging_face.loglikelihood(requests)
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-3)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]


def test_whole_texts_are_as_likely_as_to_lm_evals_own_model(make: Make, hugging_face: Any) -> None:
    requests = asked("loglikelihood_rolling", *((text,) for text in TEXTS))
    found, expected = make().loglikelihood_rolling(requests), hugging_face.loglikelihood_rolling(requests)
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("decoder", ["autoregressive", "ngram", "auto", "self"])
def test_answers_are_those_of_lm_evals_own_model(
    make: Make, hugging_face: Any, tiny_folder: TinyFolder, tmp_path: Path, decoder: str
) -> None:
    save_adapter(tmp_path, random_adapter(load_tiny(tiny_folder())))
    model = make(adapter=str(tmp_path), decoder=decoder, batch_size="auto")
    expected = answers(hugging_face, GREEDY)
    assert answers(model, GREEDY) == expected
    assert any(len(text) > 10 for text in expected)
    assert model.get_model_info()["tokens"] >= model.get_model_info()["forwards"] > 0


def test_likelihoods_are_those_of_a_naive_forward(make: Make, tiny_folder: TinyFolder) -> None:
    """Which needs nothing but transformers; and whether greedy decoding would say it."""
    network, tokenizer = plain_network(str(tiny_folder())), AutoTokenizer.from_pretrained(tiny_folder())
    context = tokenizer.encode("Once upon a")
    favourite = int(network(torch.tensor([context])).logits[0, -1].argmax())
    model = make()
    for token in (favourite, (favourite + 1) % 256):
        expected = network(torch.tensor([context])).logits[0, -1].log_softmax(-1)[token].item()
        ((score, is_greedy),) = model._loglikelihood_tokens([(None, context, [token])])
        assert score == pytest.approx(expected, abs=1e-4)
        assert is_greedy == (token == favourite)


def test_a_seed_of_lm_evals_repeats_a_run_and_not_an_answer(make: Make) -> None:
    model, twice = make(), [PROMPTS[0]] * 2
    runs = []
    for seed in (1, 1, 2):
        random.seed(seed)
        runs.append(answers(model, SAMPLED, twice))
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_long_prompts_lose_their_beginning(make: Make) -> None:
    # The tokenizer's tokens are bytes.
    end = "and the end of it. " * 40
    room = CONTEXT - GREEDY["max_gen_toks"]
    model = make()
    assert answers(model, GREEDY, ["another beginning " + end]) == answers(model, GREEDY, [end[-room:]])
    assert answers(model, GREEDY, [""]) == answers(model, GREEDY, ["<eos>"])


def test_chats_are_written_as_the_model_has_learnt_them(make: Make, tiny_folder: TinyFolder) -> None:
    model, tokenizer = make(), AutoTokenizer.from_pretrained(tiny_folder())
    chat = [{"role": "user", "content": "Hello?"}]
    rendered = model.apply_chat_template(chat)
    assert rendered == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    begun = [*chat, {"role": "assistant", "content": "Well"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False).endswith("Well")
    assert model.chat_template(True) == tokenizer.chat_template
    assert "/" not in model.tokenizer_name
    with pytest.raises(InputError, match="only the model's default"):
        model.chat_template("rag")
    with pytest.raises(InputError, match="does not take the task's messages"):
        model.apply_chat_template([])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"pretrained": "x"}, "there is no 'pretrained': model, adapter"),
        ({"decoder": "best"}, "there is no decoder 'best'"),
        ({"decoder": "ngram", "threshold": 0.9}, "has no --threshold"),
        ({"decoder": "self"}, "needs masks"),
        ({"backend": "gpu"}, "there is no backend 'gpu'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, or auto, not 0"),
        ({"batch_size": "auto:4"}, "or auto, not 'auto:4'"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Make, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make(**arguments)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_beams": 4}, "there is no 'num_beams' here: until, max_gen_toks"),
        ({"max_gen_toks": CONTEXT}, "ask for fewer with --gen_kwargs"),
        ({"temperature": 1000.0}, "temperature must be"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Make, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        answers(make(), settings)


def test_model_args_go_before_lm_evals_own_options(tiny_folder: TinyFolder) -> None:
    given = f"model={tiny_folder()},adapter=none,batch_size=5,decoder=ngram,k=3"
    model = StrideLM.create_from_arg_string(given, {"batch_size": 1, "device": "cpu", "max_batch_size": None})
    assert model.model.engine.scheduler.max_sequences == 5
    assert model.decode.k == 3
    assert model.model.settings.device == "cpu"


def test_the_names_that_the_package_registers_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "lm_eval.models"
    assert EntryPoint("stridelm", project["entry-points"][group]["stridelm"], group).load() is StrideLM
    assert EntryPoint("", project["scripts"]["stridelm-lm-eval"], "console_scripts").load() is ours.main
    assert get_model("stridelm") is StrideLM


def arguments(folder: Path, out: Path) -> list[str]:
    return [
        *("--model", "stridelm", "--include_path", TASKS, "--tasks", "stride_choices,stride_answers"),
        *("--log_samples", "--output_path", str(out), "--batch_size", "4", "--apply_chat_template"),
        *("--model_args", f"model={folder},device=cpu,decoder=ngram"),
    ]


def check_results(out: Path) -> None:
    (file,) = out.rglob("results_*.json")
    results = json.loads(file.read_text())
    assert set(results["results"]) == {"stride_choices", "stride_answers"}
    assert 0 <= results["results"]["stride_choices"]["acc,none"] <= 1
    assert results["config"]["decoder"] == "ngram"
    assert results["config"]["tokens_per_forward"] >= 1
    samples = {name: next(out.rglob(f"samples_{name}_*.jsonl")) for name in results["results"]}
    choices, texts = (list(map(json.loads, samples[name].read_text().splitlines())) for name in sorted(samples)[::-1])
    assert len(choices) == len(texts) == 8
    assert all(float(score) < 0 for line in choices for ((score, _),) in line["resps"])
    assert all("[assistant] " in line["arguments"]["gen_args_0"]["arg_0"] for line in texts)


def test_the_command_line_runs_a_local_task(
    tiny_folder: TinyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lm-eval's own thousands of tasks take half a minute to read.
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", partial(lm_eval.tasks.TaskManager, include_defaults=False))
    # What it would leave behind in this process and on the disk.
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["stridelm-lm-eval", *arguments(tiny_folder(), tmp_path / "out")])
    ours.main()
    check_results(tmp_path / "out")


def test_the_command_line_says_what_was_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise InputError("there is no such thing")

    monkeypatch.setattr(ours, "cli_evaluate", refuse)
    with pytest.raises(SystemExit) as end:
        ours.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "stridelm-lm-eval: there is no such thing\n"


@pytest.mark.slow
def test_the_command_line_runs_by_itself(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """With all of lm-eval's tasks, in a process of its own, where the module is there twice."""
    command = [sys.executable, "-m", "stridelm.bench.lm_eval", "run", *arguments(tiny_folder(), tmp_path / "out")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stride_choices" in done.stdout
    check_results(tmp_path / "out")
