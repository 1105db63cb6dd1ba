"""bench/engines/two_pass.py on tiny models against the same two passes run step by step, without caches."""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.engines import two_pass
from reference import mask_row_outputs
from stridelm import LoadSettings
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.adapter import Adapter, save_adapter
from stridelm.models.encode import encode_prompt
from tiny import plain_network, random_adapter

PROMPTS = ("abcabcabd abc", "The quick brown fox jumps over the lazy dog", "1 2 3 4")
MAX_TOKENS, KS = 20, (2, 4)
FAINT = 0.02
"""How much a random adapter without a gate changes: some drafts should be right."""


@pytest.fixture(scope="module")
def base(tiny_folder: Callable[..., Path]) -> Checkpoint:
    # Initialised so that greedy answers repeat themselves: drafts are then sometimes right.
    folder = tiny_folder("llama", initializer_range=0.8)
    return load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)


def faint(adapter: Adapter) -> Adapter:
    """Without a gate, and one mask embedding."""
    tensors = {name: tensor * FAINT if name.endswith(".up") else tensor for name, tensor in adapter.tensors.items()}
    tensors["mask_embedding"] = tensors["mask_embedding"][:1].expand(adapter.config.masks, -1).contiguous()
    return Adapter(adapter.config, tensors, is_gated=False)


def merged(base: Checkpoint, adapter: Adapter) -> Any:
    network = copy.deepcopy(plain_network(base.name))
    with torch.no_grad():
        for target in adapter.config.targets:
            down, up = adapter.low_rank(target)
            network.get_submodule(target).weight += up @ down
    return network


def greedy(network: Any, ids: list[int]) -> int:
    with torch.inference_mode():
        return int(network(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())


def drafts(base: Checkpoint, adapter: Adapter, ids: list[int], k: int) -> list[int]:
    """One drafter's pass over all tokens and k - 1 masks, no head."""
    if adapter.is_gated:
        network = plain_network(base.name)
        logits, _ = mask_row_outputs(network, adapter, ids, k - 1)
        return [greedy(network, ids), *logits.argmax(dim=-1).tolist()]
    network = merged(base, adapter)
    embedded = torch.cat([network.get_input_embeddings()(torch.tensor(ids)), adapter.mask_embedding[: k - 1]])
    with torch.inference_mode():
        logits = network(inputs_embeds=embedded[None], use_cache=False).logits[0, -k:]
    return logits.argmax(dim=-1).tolist()


def stepped(base: Checkpoint, adapter: Adapter, k: int) -> tuple[int, list[int]]:
    """Steps, and how often each position was accepted."""
    target, steps, accepted = plain_network(base.name), 0, [0] * k
    for prompt in PROMPTS:
        ids = list(encode_prompt(base, prompt))
        end = len(ids) + MAX_TOKENS
        ids.append(greedy(target, ids))
        while len(ids) < end and ids[-1] not in base.eos_ids:
            steps += 1
            for position, draft in enumerate(drafts(base, adapter, ids, k)):
                token = greedy(target, ids)
                if draft != token:
                    break
                accepted[position] += 1
                ids.append(token)
            else:
                token = greedy(target, ids)
            ids.append(token)
            ends = [place for place, token in enumerate(ids) if place >= end - MAX_TOKENS and token in base.eos_ids]
            ids = ids[: ends[0] + 1] if ends else ids
    return steps, accepted


@pytest.mark.parametrize("gate", ["mask", "none"])
def test_the_walk_is_what_two_passes_take(
    gate: str, base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = random_adapter(base, sequential_size=0)
    adapter = adapter if gate == "mask" else faint(adapter)
    save_adapter(tmp_path / "mine", adapter)
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in (*PROMPTS, "not asked")))
    arguments: list[Any] = ["--model", base.name, "--adapter", tmp_path / "mine", "--prompts", prompts, "--limit", 3]
    arguments += ["--max-tokens", MAX_TOKENS, "--k", *KS, "--device", "cpu", "--json", report]
    monkeypatch.setattr(sys, "argv", ["two_pass.py", *map(str, arguments)])
    two_pass.main()
    measured = json.loads(report.read_text())["measured"]
    assert [(entry["k"], entry["gate"]) for entry in measured] == [(k, gate) for k in KS]
    stored = replace(adapter, tensors={name: tensor.bfloat16().float() for name, tensor in adapter.tensors.items()})
    for entry in measured:
        steps, accepted = stepped(base, stored, entry["k"])
        assert (entry["drafts"], entry["accepted"]) == (steps, accepted)
        assert entry["tokens_per_step"] == pytest.approx(1 + sum(accepted) / steps, abs=1e-3)
        assert accepted[0] > 0 and (gate == "mask") == (accepted[0] == steps), "else the test says little"
    assert (measured[0]["real_rows_agree"] == 1) == (gate == "mask")
