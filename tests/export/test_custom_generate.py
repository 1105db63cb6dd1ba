"""custom_generate/generate.py in an exported folder: transformers alone, the same tokens, fewer forwards."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
    dynamic_module_utils,
)

import stridelm
from command_line import Call
from counting import END, FIRST, Conversion
from stridelm.export.custom_generate import generate as script
from stridelm.models.adapter import Adapter, save_adapter
from stridelm.params import SamplingParams
from stridelm.sampling import DRAFT_CANDIDATES
from stridelm.settings import LoadSettings
from tiny import load_tiny, random_adapter, save_tiny

KINDS = ("gated", "merged", "full")
Exported = Callable[..., Path]


@pytest.fixture
def exported(call: Call, tmp_path: Path, tiny_folder: Callable[..., Path]) -> Exported:
    """The folder of a tiny model with a conversion that knows nothing, whose drafts are hardly ever right."""

    def export(kind: str, family: str = "llama", **changes: Any) -> Path:
        if kind == "full":
            return written(call, tmp_path, tiny_folder(family, mask_token_id=259, trained_masks=3, **changes), None)
        base = tiny_folder(family, **changes)
        adapter = random_adapter(load_tiny(base), sequential_size=8 if kind == "gated" else 0)
        return written(call, tmp_path, base, dataclasses.replace(adapter, is_gated=kind == "gated"))

    return export


def written(call: Call, tmp_path: Path, base: Path, adapter: Adapter | None) -> Path:
    options: list[str | Path] = []
    if adapter is not None:
        save_adapter(tmp_path / "adapter", adapter)
        options = ["--adapter", tmp_path / "adapter"]
    run = call("export", "--model", base, *options, "--to", "hf", tmp_path / "out")
    assert (run.status, run.err) == (0, "")
    return tmp_path / "out"


def loaded(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **options)


def several(network: Any, folder: Path, ids: torch.Tensor, **options: Any) -> Any:
    return network.generate(ids, custom_generate=str(folder), trust_remote_code=True, **options)


def prompt(*tokens: int) -> torch.Tensor:
    return torch.tensor([tokens or (5, 40, 7, 250, 9, 3)])


def count_forwards(network: Any) -> list[None]:
    forwards: list[None] = []
    network.register_forward_hook(lambda *_: forwards.append(None))
    return forwards


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95},
    "penalised": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 12},
}


@pytest.mark.parametrize(
    ("kind", "family"), [*((kind, "llama") for kind in KINDS), ("gated", "qwen3"), ("merged", "mixtral")]
)
def test_the_text_is_that_of_plain_generate(kind: str, family: str, exported: Exported) -> None:
    folder = exported(kind, family)
    network = loaded(folder, attn_implementation="eager" if family == "qwen3" else "sdpa")
    for options in OPTIONS.values():
        for ids in (prompt(), prompt(77)):
            torch.manual_seed(1)
            expected = network.generate(ids, max_new_tokens=24, **options)
            torch.manual_seed(1)
            assert torch.equal(several(network, folder, ids, max_new_tokens=24, **options), expected)


def plain(network: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    return network.generate(ids, do_sample=False, **options)


def test_good_drafts_save_forwards(call: Call, counting: Callable[..., Conversion], tmp_path: Path) -> None:
    """A model that can count, and whose masks can; its texts end by themselves."""
    conversion = counting()
    folder = written(call, tmp_path, Path(conversion.checkpoint.name), conversion.adapter)
    network = loaded(folder)
    forwards = count_forwards(network)
    tokens = steps = 0
    for first in range(FIRST, FIRST + 6):
        ids = prompt(first, first + 1, first + 2)
        expected = plain(network, ids, max_new_tokens=40)
        assert expected[0, -1] == END
        forwards.clear()
        assert torch.equal(several(network, folder, ids, max_new_tokens=40, do_sample=False), expected)
        steps += len(forwards)
        tokens += expected.shape[1] - ids.shape[1]
    assert steps < tokens / 2


@pytest.mark.parametrize("kind", ["merged", "full"])
def test_masks_of_the_vocabulary_save_forwards(kind: str, call: Call, tmp_path: Path) -> None:
    """A model that says the same after every token, its masks included: each step takes all drafts and one token."""
    base = monotonous(tmp_path / "base", kind)
    adapter = None
    if kind == "merged":
        checkpoint = load_tiny(base)
        random = random_adapter(checkpoint, sequential_size=0)
        tensors = {name: torch.zeros_like(tensor) for name, tensor in random.tensors.items()}
        tensors["mask_embedding"] += checkpoint.network.get_input_embeddings().weight[0]  # type: ignore[operator]
        adapter = Adapter(random.config, tensors, is_gated=False)
    folder = written(call, tmp_path, base, adapter)
    network = loaded(folder)
    forwards = count_forwards(network)
    for length in (1, 2, 3, 23):
        expected = plain(network, prompt(), max_new_tokens=length)
        forwards.clear()
        assert torch.equal(several(network, folder, prompt(), max_new_tokens=length, do_sample=False), expected)
        # The prompt gives one token, the first masks another, and from then on three are accepted and one drawn.
        assert len(forwards) == min(length, 2) + -(-max(length - 2, 0) // 4)


def monotonous(folder: Path, kind: str) -> Path:
    masks: dict[str, Any] = {"mask_token_id": 259, "trained_masks": 3} if kind == "full" else {}
    save_tiny(folder, **masks)
    network: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.model.embed_tokens.weight[:] = network.model.embed_tokens.weight[0].bfloat16()
        network.lm_head.weight *= 8
        network.lm_head.weight[256:] = 0  # nothing ends the text
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    network.save_pretrained(folder)
    return folder


def test_the_script_imports_nothing_but_what_transformers_needs_itself(exported: Exported) -> None:
    (script,) = exported("gated").rglob("*.py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            found.add(node.module)
        elif isinstance(node, ast.Name):
            assert node.id not in ("__import__", "exec", "eval")
    packages = {name.split(".")[0] for name in found}
    assert packages - sys.stdlib_module_names == {"torch", "transformers", "safetensors"}
    assert not packages & {"importlib", "runpy"}


@pytest.mark.slow
def test_nothing_of_ours_is_imported(exported: Exported, tmp_path: Path) -> None:
    folder = exported("gated")
    expected = plain(loaded(folder), prompt(), max_new_tokens=24)[0].tolist()
    script = tmp_path / "elsewhere.py"
    script.write_text(
        "import json, sys\n"
        "sys.modules['stridelm'] = None  # an import of it fails\n"
        "import torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r}, dtype='float32')\n"
        f"found = model.generate(torch.tensor({prompt().tolist()}), max_new_tokens=24, do_sample=False, "
        f"custom_generate={str(folder)!r}, trust_remote_code=True)\n"
        "assert not [name for name in sys.modules if name.startswith('stridelm.')]\n"
        "print(json.dumps(found[0].tolist()))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == expected


# What generate takes and gives


def test_a_model_loaded_with_its_code_decodes_so_by_itself(exported: Exported) -> None:
    folder = exported("gated")
    network = loaded(folder, trust_remote_code=True)
    expected = plain(loaded(folder), prompt(), max_new_tokens=12)
    assert torch.equal(network.generate(prompt(), max_new_tokens=12, do_sample=False), expected)


def test_scores_and_cache_are_returned(exported: Exported) -> None:
    folder = exported("gated")
    network = loaded(folder)
    options: dict[str, Any] = {
        "max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_scores": True,
        "output_logits": True, "repetition_penalty": 1.2,
    }  # fmt: skip
    expected, found = network.generate(prompt(), **options), several(network, folder, prompt(), **options)
    assert type(found) is type(expected)
    assert torch.equal(found.sequences, expected.sequences)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.cat(found[name]), torch.cat(expected[name]), rtol=1e-4, atol=1e-4)


class Listener:
    """A streamer that notes what it hears, and may fail."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.heard: list[list[int]] = []
        self.fails_at, self.has_ended = fails_at, False

    def put(self, tokens: torch.Tensor) -> None:
        self.heard.append(tokens.flatten().tolist())
        if len(self.heard) == self.fails_at:
            raise RuntimeError("the listener has left")

    def end(self) -> None:
        self.has_ended = True


def test_a_streamer_hears_what_plain_generate_tells_it(exported: Exported) -> None:
    folder = exported("gated")
    network, first, second = loaded(folder), Listener(), Listener()
    plain(network, prompt(), max_new_tokens=8, streamer=first)
    several(network, folder, prompt(), max_new_tokens=8, do_sample=False, streamer=second)
    assert first.heard == second.heard and second.has_ended


def test_what_stops_a_text_stops_it_here(exported: Exported) -> None:
    folder = exported("gated")
    network, tokenizer = loaded(folder), AutoTokenizer.from_pretrained(folder)
    free = plain(network, prompt(), max_new_tokens=16)[0].tolist()

    printable = next(text for text in map(tokenizer.decode, free[8:]) if text.isascii())

    class Until(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
            return input_ids[:, -1] == free[11]

    stops: tuple[dict[str, Any], ...] = (
        {"stopping_criteria": StoppingCriteriaList([Until()])},
        {"eos_token_id": [free[9], 256]},
        {"stop_strings": [printable], "tokenizer": tokenizer},
        {"max_length": 9, "max_new_tokens": None},
    )
    for stop in stops:
        expected = network.generate(prompt(), do_sample=False, **{"max_new_tokens": 16} | stop)
        assert expected.shape[1] < len(free)
        found = several(network, folder, prompt(), do_sample=False, **{"max_new_tokens": 16} | stop)
        assert torch.equal(found, expected)


def test_a_call_leaves_the_model_as_it_was(exported: Exported) -> None:
    folder = exported("gated")
    network = loaded(folder)
    before = network(prompt()).logits
    with pytest.raises(RuntimeError, match="the listener has left"):
        several(network, folder, prompt(), max_new_tokens=8, do_sample=False, streamer=Listener(fails_at=4))
    assert not any(module._forward_hooks for module in network.modules())
    assert torch.equal(network(prompt()).logits, before)


# What is refused


def filled_cache(network: Any) -> DynamicCache:
    cache = DynamicCache(config=network.config)
    network(prompt(1, 2), past_key_values=cache)
    return cache


REFUSED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "batch of 2": lambda network: {"inputs": prompt().expand(2, -1)},
    "ask for one answer": lambda network: {"num_return_sequences": 2, "do_sample": True},
    "beam_search": lambda network: {"num_beams": 2},
    "assisted_generation": lambda network: {"prompt_lookup_num_tokens": 3},
    "assistant_model": lambda network: {"assistant_model": network},
    "padding": lambda network: {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])},
    "position_ids": lambda network: {"position_ids": torch.arange(6)[None] + 3},
    "StaticCache": lambda network: {"cache_implementation": "static"},
    "holds something": lambda network: {"past_key_values": filled_cache(network)},
    "use_cache=False": lambda network: {"use_cache": False},
    "hidden states": lambda network: {"output_hidden_states": True, "return_dict_in_generate": True},
    "prefill_chunk_size": lambda network: {"prefill_chunk_size": 2},
    "guidance_scale": lambda network: {"guidance_scale": 1.5},
    "tokenizer=": lambda network: {"stop_strings": ["x"]},
}


def test_what_cannot_be_done_is_refused(exported: Exported) -> None:
    folder = exported("gated")
    network = loaded(folder)
    for words, options in REFUSED.items():
        given = {"inputs": prompt(), "max_new_tokens": 4, "do_sample": False} | options(network)
        with pytest.raises(ValueError, match=words):
            several(network, folder, given.pop("inputs"), **given)
    network.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="attention by flex_attention"):
        several(network, folder, prompt(), max_new_tokens=4)


def test_models_that_cannot_be_run_so_are_refused(exported: Exported, tiny_folder: Callable[..., Path]) -> None:
    sliding = exported("gated", "gemma3")
    with pytest.raises(ValueError, match="sliding windows"):
        several(loaded(sliding), sliding, prompt(), max_new_tokens=4)
    with pytest.raises(ValueError, match=r"neither .* nor a mask_token_id .*stridelm export"):
        several(loaded(tiny_folder()), sliding, prompt(), max_new_tokens=4)


# What was exported, in StrideLM


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_folder_is_read_by_stridelm_too(kind: str, exported: Exported) -> None:
    folder = exported(kind)
    adapter = folder / "custom_generate" if kind == "gated" else None
    model = stridelm.load(str(folder), adapter=adapter, settings=LoadSettings(device="cpu", cache_tokens=1024))
    assert model.gate is not None and model.gate.k == 4
    result = model.generate("abc", SamplingParams(max_tokens=16), decoder="self", raw=True)
    expected = plain(loaded(folder), torch.tensor([model.encode("abc", raw=True)]), max_new_tokens=16)
    assert [*model.encode("abc", raw=True), *result.token_ids] == expected[0].tolist()


ENGINES = Path(__file__).parent.parent.parent / "docs" / "engines.md"


@pytest.mark.slow
def test_what_the_docs_say_of_the_built_in_model(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = ENGINES.read_text().split("## transformers\n")[1].split("\n## ")[0]
    commands = [line.split()[1:] for line in section.splitlines() if line.startswith("    stridelm export")]
    assert [call(*command).status for command in commands] == [0, 0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)

    network, inputs = names["model"], names["inputs"]
    forwards = count_forwards(network)
    steps = {}
    for name, options in (
        ("custom_generate", {"custom_generate": "smollm2-hf", "trust_remote_code": True}),
        ("assistant_model", {"assistant_model": names["assistant"]}),
    ):
        forwards.clear()
        network.generate(**inputs, **names["settings"], **options)
        steps[name] = len(forwards)
    tokens = names["plain"].shape[1] - inputs["input_ids"].shape[1]
    assert all(tokens / count > 1.3 for count in steps.values()), (tokens, steps)


def test_threads_that_share_a_model_do_not_disturb_each_other(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported("gated")
    # transformers parses the folder's code at every call, and Python 3.11 may fail where two threads parse at once.
    parsing, get_imports = threading.Lock(), dynamic_module_utils.get_imports

    def one_at_a_time(filename: str) -> list[str]:
        with parsing:
            return get_imports(filename)

    monkeypatch.setattr(dynamic_module_utils, "get_imports", one_at_a_time)
    network, prompts = loaded(folder), (prompt(), prompt(77, 8, 9, 10, 11, 12, 13, 14))
    expected = [plain(network, ids, max_new_tokens=12) for ids in prompts]
    logits = network(prompts[1]).logits
    has_paused, may_go_on = threading.Event(), threading.Event()

    class Pausing(Listener):
        def put(self, tokens: torch.Tensor) -> None:
            super().put(tokens)
            if len(self.heard) == 4:
                has_paused.set()
                assert may_go_on.wait(60)

    def decode(ids: torch.Tensor, streamer: Listener | None = None) -> torch.Tensor:
        return several(network, folder, ids, max_new_tokens=12, do_sample=False, streamer=streamer)

    with ThreadPoolExecutor(2) as pool:
        paused = pool.submit(decode, prompts[0], Pausing())
        try:
            assert has_paused.wait(60)
            assert torch.equal(network(prompts[1]).logits, logits)
            assert torch.equal(decode(prompts[1]), expected[1])
        finally:
            may_go_on.set()
        assert torch.equal(paused.result(), expected[0])
        for found, text in zip(pool.map(decode, prompts * 3), expected * 3, strict=True):
            assert torch.equal(found, text)


def test_stop_strings_of_settings_stop_a_text_too(exported: Exported) -> None:
    folder = exported("gated")
    network, tokenizer = loaded(folder), AutoTokenizer.from_pretrained(folder)
    free = plain(network, prompt(), max_new_tokens=16)
    stop = [next(text for text in map(tokenizer.decode, free[0, 8:].tolist()) if text.isascii())]
    given: dict[str, Any] = {
        "tokenizer": tokenizer,
        "generation_config": GenerationConfig(stop_strings=stop, max_new_tokens=16),
    }
    expected = network.generate(prompt(), **given)
    assert expected.shape[1] < free.shape[1]
    assert torch.equal(several(network, folder, prompt(), **given), expected)
    network.generation_config.stop_strings = stop
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False}
    assert torch.equal(several(network, folder, prompt(), tokenizer=tokenizer, **options), expected)
    assert torch.equal(several(network, folder, prompt(), stop_strings=None, **options), free)
    with pytest.raises(ValueError, match="tokenizer="):
        several(network, folder, prompt(), **options)


def test_the_script_has_as_many_candidates_as_the_package() -> None:
    assert script.CANDIDATES == DRAFT_CANDIDATES


def test_a_vocabulary_may_be_smaller_than_the_candidates(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    network = loaded(exported("gated"))
    monkeypatch.setattr(script, "CANDIDATES", network.config.vocab_size + 1)
    found = script.generate(prompt(), model=network, max_new_tokens=8, do_sample=False)
    assert torch.equal(found, plain(network, prompt(), max_new_tokens=8))
