"""bench/decoding/unverified.py on tiny models: its figures against those computed prompt by prompt."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import stridelm
from bench.decoding import unverified
from bench.decoding.base_model import FOREIGN_PROBABILITY, BaseModel
from bench.decoding.unverified_tables import tables
from stridelm import DecodeSettings, InputError, LanguageModel, LoadSettings, SamplingParams
from stridelm.models.adapter import save_adapter
from stridelm.prompts import read_prompts
from tiny import byte_tokenizer, load_tiny, plain_network, random_adapter

PROMPTS = ("abcabcabd abc", "The quick brown fox jumps over the lazy dog", "x", "1 2 3 4", "never asked")
COUNT, MAX_TOKENS = 4, 24
PARAMS = SamplingParams(max_tokens=MAX_TOKENS)
SETTINGS = (
    DecodeSettings("adaptive", k_max=4, threshold=0.3),
    DecodeSettings("static", k=2),
    DecodeSettings("static", k=4),
)

Folder = Callable[..., Path]
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def places(tiny_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base model, an adapter for it, a model of slightly other weights that stands alone, and prompts."""
    folder = tmp_path_factory.mktemp("unverified")
    base = tiny_folder("llama", initializer_range=0.8)
    save_adapter(folder / "adapter", random_adapter(load_tiny(base)))
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn_like(weight)
    network.config.mask_token_id = 259
    for part in (network, byte_tokenizer()):
        part.save_pretrained(folder / "alone")
    return {"base": base, "adapter": folder / "adapter", "alone": folder / "alone", "prompts": prompts}


@pytest.fixture(scope="module")
def run(places: dict[str, Path]) -> Run:
    """The script with some subjects; what it wrote."""

    def call(file: Path, *arguments: str) -> dict[str, Any]:
        given = {
            "--base": places["base"], "--prompts": places["prompts"], "--json": file, "--count": COUNT,
            "--max-tokens": MAX_TOKENS, "--thresholds": 0.3, "--k-max": 4, "--batch": 3, "--device": "cpu",
        }  # fmt: skip
        unverified.main([*(str(part) for each in given.items() for part in each), "--static", "2", "4", *arguments])
        return json.loads(file.read_text())

    return call


@pytest.fixture(scope="module")
def measured(run: Run, places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("measured") / "out.json"
    subjects = (f"adapted={places['base']},{places['adapter']}", f"alone={places['alone']}")
    return run(file, "--subject", *subjects)


def load(places: dict[str, Path], name: str) -> LanguageModel:
    model, adapter = (places["base"], places["adapter"]) if name == "adapted" else (places["alone"], None)
    return stridelm.load(str(model), adapter=adapter, settings=LoadSettings(device="cpu", cache_tokens=1024))


@torch.inference_mode()
def probabilities(places: dict[str, Path], prompt: list[int], answer: list[int]) -> list[torch.Tensor]:
    """The base model's distribution before every token of an answer."""
    logits = plain_network(str(places["base"]))(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
    return list(logits[len(prompt) - 1 : -1].double().softmax(-1))


def same_beginning(plain: list[int], other: list[int]) -> int:
    return next((at for at in range(len(plain)) if plain[at : at + 1] != other[at : at + 1]), len(plain))


def share(count: int, of: int) -> dict[str, object]:
    return {"count": count, "of": of, "share": pytest.approx(count / of, abs=1e-5)}


@pytest.mark.parametrize("name", ["adapted", "alone"])
def test_figures_are_those_of_one_prompt_at_a_time(
    name: str, measured: dict[str, Any], places: dict[str, Path]
) -> None:
    model, base = load(places, name), stridelm.load(str(places["base"]), settings=LoadSettings(device="cpu"))
    subject = measured["subjects"][name]
    plain = {"own": model, "base": base}
    for settings, entry in zip(SETTINGS, subject["settings"], strict=True):
        tokens = forwards = ngrams = new_ngrams = 0
        log_likelihood, agreement, identical = 0.0, {"own": 0.0, "base": 0.0}, {"own": 0, "base": 0}
        for prompt in PROMPTS[:COUNT]:
            result = model.generate(prompt, PARAMS, decoder=settings)
            answer = list(result.token_ids)
            tokens, forwards = tokens + len(answer), forwards + len(result.strides)
            rows = probabilities(places, base.encode(prompt), answer)
            log_likelihood += sum(math.log(row[token]) for row, token in zip(rows, answer, strict=True))
            grams = list(zip(answer, answer[1:], answer[2:], answer[3:], strict=False))
            ngrams, new_ngrams = ngrams + len(grams), new_ngrams + len(set(grams))
            for whose, writer in plain.items():
                expected = list(writer.generate(prompt, PARAMS, decoder="autoregressive").token_ids)
                agreement[whose] += same_beginning(expected, answer) / len(expected) / COUNT
                identical[whose] += expected == answer
        assert (entry["tokens"], entry["forwards"], entry["foreign_tokens"]) == (tokens, forwards, 0)
        assert entry["tokens_per_forward"] == pytest.approx(tokens / forwards, abs=1e-4)
        assert entry["log_likelihood"] == pytest.approx(log_likelihood / tokens, abs=1e-3)
        assert entry["repeated_ngrams"] == share(ngrams - new_ngrams, ngrams)
        for whose in plain:
            assert entry[whose]["agreement"] == pytest.approx(agreement[whose], abs=1e-5)
            assert entry[whose]["identical"] == share(identical[whose], COUNT)
    assert subject["shares_weights"] == (name == "adapted")
    assert subject["plain"]["tokens"] > 0


@dataclass
class Counted:
    """The failures in strides of up to four tokens, by loops written out."""

    strides: int = 0
    misfits: int = 0
    plausible: int = 0
    at_once: list[int] = field(default_factory=lambda: [0] * 3)
    in_stride: list[int] = field(default_factory=lambda: [0] * 3)
    of: list[int] = field(default_factory=lambda: [0] * 3)

    def add(self, strides: list[list[int]], rows: list[torch.Tensor]) -> None:
        place = 0
        for stride in strides:
            self.strides += 1
            for depth, token in enumerate(stride[1:], 1):
                self.of[depth - 1] += 1
                self.at_once[depth - 1] += token == stride[depth - 1]
                self.in_stride[depth - 1] += stride.index(token) < depth
                before, row = rows[place + depth - 1][stride[depth - 1]], rows[place + depth]
                if before >= 0.01:
                    self.plausible += 1
                    self.misfits += bool(row[token] < 0.001 and (row > row[token]).sum() >= 50)
            place += len(stride)

    def check_repetition(self, failures: dict[str, Any]) -> None:
        for name, counts in (("repeated_at_once", self.at_once), ("repeated_in_stride", self.in_stride)):
            assert failures[name]["by_depth"] == [share(*each) for each in zip(counts, self.of, strict=True)]
            assert failures[name]["all"] == share(sum(counts), sum(self.of))


def in_fours(tokens: tuple[int, ...]) -> list[list[int]]:
    return [list(tokens[at : at + 4]) for at in range(0, len(tokens), 4)]


@pytest.mark.parametrize("name", ["adapted", "alone"])
def test_failures_are_counted_in_the_longest_strides(
    name: str, measured: dict[str, Any], places: dict[str, Path]
) -> None:
    model, base = load(places, name), stridelm.load(str(places["base"]), settings=LoadSettings(device="cpu"))
    written, own, plain = Counted(), Counted(), Counted()
    for prompt in PROMPTS[:COUNT]:
        result = model.generate(prompt, PARAMS, decoder=SETTINGS[-1])
        own_plain, base_plain = (each.generate(prompt, PARAMS, decoder="autoregressive") for each in (model, base))
        for counted, tokens, strides in (
            (written, result.token_ids, [list(stride.tokens) for stride in result.strides]),
            (own, own_plain.token_ids, in_fours(own_plain.token_ids)),
            (plain, base_plain.token_ids, in_fours(base_plain.token_ids)),
        ):
            counted.add(strides, probabilities(places, model.encode(prompt), list(tokens)))
    failures = measured["subjects"][name]["failures"]
    assert (failures["k"], failures["strides"]) == (4, written.strides)
    assert failures["misfits"] == share(written.misfits, written.plausible)
    assert failures["misfits_of_own_plain"] == share(own.misfits, own.plausible)
    assert 0 < written.misfits < written.plausible, "random masks do not fit each other, mostly"
    written.check_repetition(failures)
    plain.check_repetition(failures["base_plain"])
    assert 0 < len(failures["misfit_examples"]) <= 5 and failures["misfit_examples"][0].count("[") >= 2


def test_what_the_base_model_writes_stands_beside(measured: dict[str, Any], places: dict[str, Path]) -> None:
    network, base = plain_network(str(places["base"])), load_tiny(places["base"])
    model = load(places, "adapted")
    log_likelihood = tokens = repeated = pairs = 0
    for prompt in PROMPTS[:COUNT]:
        ids, answer = model.encode(prompt), []
        while len(answer) < MAX_TOKENS and not (answer and answer[-1] in base.eos_ids):
            with torch.inference_mode():
                answer.append(int(network(input_ids=torch.tensor([ids + answer])).logits[0, -1].argmax()))
        rows = probabilities(places, ids, answer)
        log_likelihood += sum(math.log(row[token]) for row, token in zip(rows, answer, strict=True))
        tokens, pairs = tokens + len(answer), pairs + len(answer) - 1
        repeated += sum(answer[at] == answer[at - 1] for at in range(1, len(answer)))
    figures = measured["base_plain"]
    assert figures["tokens"] == tokens
    assert figures["log_likelihood"] == pytest.approx(log_likelihood / tokens, abs=1e-3)
    assert figures["repeated_tokens"] == share(repeated, pairs)
    # The base model's own choice is never implausible to it.
    assert measured["subjects"]["adapted"]["failures"]["misfits_of_own_plain"]["count"] == 0
    assert measured["subjects"]["alone"]["failures"]["misfits_of_own_plain"]["count"] > 0


def test_plain_answers_are_kept_and_read_again(run: Run, places: dict[str, Path], tmp_path: Path) -> None:
    subject, plain = f"adapted={places['base']},{places['adapter']}", tmp_path / "plain.json"
    first = run(tmp_path / "first.json", "--subject", subject, "--plain", str(plain))
    kept = json.loads(plain.read_text())
    assert first["base_plain"]["tokens"] == sum(len(pair["answer"]) for pair in kept["answers"])
    for pair in kept["answers"]:
        pair["answer"] = [65] * 3
    plain.write_text(json.dumps(kept))
    assert run(tmp_path / "second.json", "--subject", subject, "--plain", str(plain))["base_plain"]["tokens"] == 12
    plain.write_text(json.dumps(kept | {"max_tokens": 5}))
    with pytest.raises(InputError, match="other --max-tokens"):
        run(tmp_path / "third.json", "--subject", subject, "--plain", str(plain))


def test_subjects_are_added_and_one_that_fails_costs_no_other(
    run: Run, measured: dict[str, Any], places: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    file.write_text(json.dumps(measured | {"subjects": {"first": measured["subjects"]["adapted"]}}))
    with pytest.raises(SystemExit, match="no masks"):
        run(file, "--subject", f"plain={places['base']}", f"alone={places['alone']}")
    content = json.loads(file.read_text())
    assert list(content["subjects"]) == ["first", "alone"]
    with pytest.raises(InputError, match="made otherwise"):
        run(file, "--subject", f"alone={places['alone']}", "--count", "2")


def test_tables_hold_every_subject_and_setting(measured: dict[str, Any]) -> None:
    lines = tables([measured]).splitlines()
    settings = ["adaptive, threshold 0.3", "static, k 2", "static, k 4"]
    names = [tuple(line.split(" | ")[:2]) for line in lines if line.startswith("| ")]
    assert names == [
        ("| subject", "setting"), ("| base", "one token at a time"),
        *(("| adapted", setting) for setting in settings),
        *(("| alone", setting) for setting in ["one token at a time", *settings]),
        ("| subject", "k"), ("| base, plain text", "4"), ("| adapted", "4"), ("| alone", "4"),
    ]  # fmt: skip
    for table in "\n".join(lines).split("\n\n"):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    other = measured | {"conditions": measured["conditions"] | {"max_tokens": 5}}
    with pytest.raises(InputError, match="not made alike"):
        tables([measured, other])


def test_tokens_that_the_base_model_does_not_have_are_as_unlikely_as_can_be(places: dict[str, Path]) -> None:
    base = BaseModel(
        str(places["base"]), LoadSettings(device="cpu"), read_prompts(places["prompts"])[:1], MAX_TOKENS, batch=1
    )
    (judged,) = base.judge([(65, 260, 66)])
    assert judged.probabilities[1] == pytest.approx(FOREIGN_PROBABILITY) and judged.ranks[1] == 261
    rows = probabilities(places, list(base.prompts[0]), [65])
    assert judged.probabilities[0] == pytest.approx(float(rows[0][65]), rel=1e-3)
