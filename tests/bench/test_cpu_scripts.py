"""The smaller scripts of bench/cpu: another quantisation of a file, drift, prompts, parts of a forward, other work."""

import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored

from bench.cpu import beside, k_quants, llama_bench, parts, prompts, requantise
from bench.cpu.activations import drift, mean_with_interval
from bench.cpu.peers import LLAMA, Answer
from bench.cpu.run import choose_model
from gguf_models import stored_as
from native import load_native
from stridelm.params import InputError


def test_what_is_quantised_anew_is_dequantised_first(tmp_path: Path) -> None:
    before, after = tmp_path / "q4_k.gguf", tmp_path / "f16.gguf"
    stored_as(Stored.Q4_K, other={"token_embd.weight": Stored.Q6_K}).write(before)
    k_quants.write_halves(before, after)
    old, new = gguf.GGUFReader(before), gguf.GGUFReader(after)
    assert new.fields["general.architecture"].contents() == "llama"
    assert set(old.fields) - set(k_quants.NOT_COPIED) == set(new.fields) - set(k_quants.NOT_COPIED)
    for was, is_now in zip(old.tensors, new.tensors, strict=True):
        first = gguf.dequantize(was.data, was.tensor_type)
        matrix = first.ndim == 2
        assert was.name == is_now.name and is_now.tensor_type == (Stored.F16 if matrix else Stored.F32)
        assert np.array_equal(is_now.data, first.astype(np.float16) if matrix else first)


def test_another_quantisation_of_a_file_has_all_else_as_it_was(tmp_path: Path, native_cache: Path) -> None:
    before, after = tmp_path / "q4_1.gguf", tmp_path / "q4_0.gguf"
    stored_as(Stored.Q4_1, other={"token_embd.weight": Stored.Q8_0}).write(before)
    requantise.write_q4_0(before, after)
    old, new = gguf.GGUFReader(before), gguf.GGUFReader(after)
    kinds = {Stored.Q4_1: Stored.Q4_0}
    assert [(each.name, kinds.get(each.tensor_type, each.tensor_type)) for each in old.tensors] == [
        (each.name, each.tensor_type) for each in new.tensors
    ]
    for was, is_now in zip(old.tensors, new.tensors, strict=True):
        first, second = (gguf.dequantize(each.data, each.tensor_type) for each in (was, is_now))
        assert np.abs(first - second).max() <= 0.15 * np.abs(first).max()
        assert was.tensor_type == Stored.Q4_1 or np.array_equal(first, second)
    changed = {"GGUF.kv_count", "general.file_type"}
    assert set(new.fields) - changed == set(old.fields) - changed
    for name in set(old.fields) - changed:
        assert new.fields[name].contents() == old.fields[name].contents()
    assert load_native(after, native_cache).target.vocabulary == load_native(before, native_cache).target.vocabulary


def test_a_file_of_ones_own_and_the_q4_0_one_exclude_each_other(tmp_path: Path) -> None:
    for given in ({"gguf": tmp_path / "a.gguf", "adapter": None}, {"gguf": None, "adapter": tmp_path}):
        with pytest.raises(InputError, match="leave out --gguf and --adapter"):
            choose_model(Namespace(q4_0=True, **given))


def test_drift_is_none_between_the_same_and_grows() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 40))
    assert drift(logits, logits + 3)[:2] == (pytest.approx(0, abs=1e-12), 1.0)
    small, large = (drift(logits, logits + size * np.sin(np.arange(40))) for size in (0.1, 1.0))
    assert 0 < small[0] < large[0] and small[2] == pytest.approx(0.1, rel=0.01)
    spread = mean_with_interval([1.0, 2.0, 3.0, 6.0])
    assert spread["mean"] == 3.0 and 1.0 <= spread["low"] < 3.0 < spread["high"] <= 6.0


def test_a_prompts_speed_is_compared_within_a_round() -> None:
    names = [*prompts.NAMES[:-1], LLAMA]
    speeds = {name: {128: [100.0, 50.0, 30.0]} for name in names} | {LLAMA: {128: [50.0, 50.0, 10.0]}}
    found = prompts.figures(speeds)
    assert found[names[0]]["128"]["over_llama"] == 2.0 and found[LLAMA]["128"]["over_llama"] == 1.0
    assert found[names[0]]["128"]["median"] == 50.0


def test_a_sample_belongs_to_the_innermost_part() -> None:
    row = ["stride::load(float const*)", "stride::normalise(...)", "stride::quantise_row(...)", "stride::Forward::run"]
    assert parts.part_of(row) == "norms"
    assert parts.part_of(row[2:]) == "quantising"
    assert parts.part_of(["stride::Tile<1, (stride::Kind)4>::run"]) == "products"
    assert parts.part_of(["stride::Forward::gate(long, stride::Share const&)"]) == "gating"
    assert parts.part_of(["stride::Forward::run()"]) == parts.OTHER


class Subject:
    def answer(self, ids: list[int], tokens: int, banned: list[int], mode: str) -> Answer:
        assert (ids, banned, mode) == (beside.PROMPT, [], beside.PLAIN)
        return Answer([0] * tokens, 1, 0.5, 0.5 + (tokens - 1) / 100, tokens)


def test_busy_processes_run_while_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*given: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    subject: Any = Subject()
    found = beside.measure({"now": subject}, [0, 2], rounds=2, tokens=11)
    assert len(started) == 2 and all(process.poll() is not None for process in started)
    assert found["now"]["2"] == {"tokens_per_s": 100.0, "spread": [100.0, 100.0], "first_seconds": 0.5}
    with beside.busy_processes(1):
        assert started[-1].poll() is None


def test_what_llama_bench_says_is_read(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    said.write_text('[{"n_prompt": 512, "n_gen": 0, "avg_ts": 2000.5}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 300.0}]')
    assert llama_bench.theirs(["sh", "-c", f"cat {said}"], tmp_path, 2) == (2000.5, 300.0)
    with pytest.raises(InputError, match="ended with status 3"):
        llama_bench.theirs(["sh", "-c", "exit 3"], tmp_path, 2)
