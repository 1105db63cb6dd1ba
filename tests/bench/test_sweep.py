"""bench/training/sweep.py: runs by the clock or by steps, measured on prompts, and that a stopped sweep goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.training import sweep
from stridelm.train import rollouts as store
from tiny import save_tiny

BASE = {
    "k": 3, "rank": 2, "sequential_size": 4, "tail_heads": 1, "tail_size": 4, "texts": 2, "length": 32, "anchors": 4,
    "warmup": 1, "held_out": 1, "answer_tokens": 8, "rollout_batch": 4,
}  # fmt: skip


@pytest.fixture
def sweep_of(tmp_path: Path) -> Any:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"say {word}"}) + "\n" for word in ("one", "two", "three", "four"))
    )
    model = save_tiny(tmp_path / "model")

    def run(*given: str, base: dict[str, Any]) -> dict[str, Any]:
        file = tmp_path / "sweep.json"
        places = ["--model", str(model), "--prompts", str(prompts), "--rollouts", str(tmp_path / "rollouts")]
        sweep.main([*places, "--json", str(file), "--measure", str(prompts), "--base", json.dumps(base), *given])
        return json.loads(file.read_text())

    return run


def test_a_sweep_by_the_clock_goes_on_where_it_was_stopped(sweep_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sweep_of("--seconds", "0.5", base=BASE)
    assert [each["changes"] for each in first["runs"]] == [{}]
    whole = sweep_of("--seconds", "0.5", '{"rank": 3}', base=BASE)
    assert whole["runs"][0] == first["runs"][0], "it is not run again"
    assert whole["runs"][1]["changes"] == {"rank": 3} and whole["runs"][1]["steps"] >= 1
    forms = whole["runs"][1]["forms"]["prompts.jsonl"]
    assert forms["chain"]["prompts_measured"] == 4 and "tree of 16 rows" in forms
    monkeypatch.setattr(sweep, "run", lambda *_: pytest.fail("nothing is left to run"))
    assert sweep_of("--seconds", "0.5", '{"rank": 3}', base=BASE) == whole


def test_seeds_and_made_up_prompts_alone_share_the_rollouts(sweep_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, int]] = []

    class Noted(sweep.Trainer):
        def __init__(self, *given: Any) -> None:
            trained.append((given[2].seed, len(given[1].train)))
            super().__init__(*given)

    monkeypatch.setattr(sweep, "Trainer", Noted)
    monkeypatch.setattr(store, "made_up", lambda *_: iter(["name a", "name b", "go on", "sing", "why me", "dance"]))
    base = BASE | {"steps": 2, "self_prompts": 6, "length": 64}
    runs = sweep_of('{"seed": 1}', '{"only_made_up": true}', base=base)["runs"]
    assert [run["changes"] for run in runs] == [{}, {"seed": 1}, {"only_made_up": True}]
    (_, texts), (seed, same), (_, fewer) = trained
    assert seed == 1 and same == texts == 9, "four given and six made up, less one that is held out"
    assert fewer in (5, 6)


def test_steps_and_seconds_exclude_each_other_and_files_of_other_sweeps_stay(sweep_of: Any) -> None:
    base = BASE | {"steps": 2}
    assert sweep_of(base=base)["runs"][0]["steps"] == 2
    for given in (["--seconds", "1"], []):
        with pytest.raises(SystemExit) as ended:
            sweep_of(*given, base=base if given else BASE | {"steps": 3})
        assert ended.value.code == 2
