"""The oracle: one token at a time, no cache, every choice written out. Slow, and meant to be obviously right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stridelm.models.adapter import Adapter
from stridelm.params import SamplingParams

Allowed = Callable[[list[int]], np.ndarray]
"""From the tokens of an answer to V booleans: which may follow. A grammar without a state."""
NEAR_TIE = 1e-4
"""A decision closer than this may fall either way in float32."""


@dataclass(frozen=True)
class Decision:
    token: int
    margin: float
    """How far the decision is from falling otherwise."""


def reference(
    network: torch.nn.Module,
    prompt: list[int],
    params: SamplingParams,
    eos_ids: frozenset[int],
    *,
    choice: int = 0,
    allowed: Allowed | None = None,
) -> list[Decision]:
    """What plain decoding writes. `network` is a transformers model as transformers made it."""
    ids, decisions = list(prompt), []
    while len(decisions) < params.max_tokens:
        with torch.inference_mode():
            logits = network(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
        decision = decide(logits.double().numpy(), params, ids, len(prompt), choice, allowed)
        decisions.append(decision)
        ids.append(decision.token)
        if decision.token in eos_ids:
            break
    return decisions


def replay(
    network: torch.nn.Module,
    prompt: list[int],
    tokens: list[int],
    params: SamplingParams,
    eos_ids: frozenset[int],
    *,
    choice: int = 0,
) -> list[Decision]:
    """What plain decoding decides at every place of an answer, given the answer's tokens before it: one forward.

    By induction the tokens are those of `reference` exactly if they equal these decisions, in number, too. What stands
    behind the first departure follows from that one and says nothing.
    """
    ids, decisions = [*prompt, *tokens], []
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=len(tokens) + 1).logits[0]
    for end, row in enumerate(logits[: params.max_tokens], start=len(prompt)):
        decisions.append(decide(row.double().numpy(), params, ids[:end], len(prompt), choice))
        if decisions[-1].token in eos_ids:
            break
    return decisions


def mask_row_outputs(network: Any, adapter: Adapter, text: list[int], masks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a chain of masks off a text's last token says, by one forward over both: logits, and the head's inputs.

    A chain of masks behind a text is a longer text, but for its embeddings and the low-rank parts, added by hand.
    """
    depths = [min(depth, adapter.config.masks) - 1 for depth in range(1, masks + 1)]
    embedded = torch.cat([network.get_input_embeddings()(torch.tensor(text)), adapter.mask_embedding[depths]])
    read: list[torch.Tensor] = []

    def change(x: torch.Tensor, target: str) -> torch.Tensor:
        down, up = adapter.low_rank(target)
        change = x @ down.T @ up.T
        change[:, : len(text)] = 0
        return change

    hooks = [
        network.get_submodule(target).register_forward_hook(
            lambda module, inputs, output, target=target: output + change(inputs[0], target)
        )
        for target in adapter.config.targets
    ]
    hooks.append(network.lm_head.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0])))
    try:
        with torch.inference_mode():
            logits = network(inputs_embeds=embedded[None], use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return logits[0, len(text) :], read[0][0, len(text) :]


def decide(
    logits: np.ndarray,
    params: SamplingParams,
    ids: list[int],
    prompt_length: int,
    choice: int,
    allowed: Allowed | None = None,
) -> Decision:
    scores = penalised(logits, params, ids, prompt_length)
    if allowed is not None:
        scores = np.where(allowed(ids[prompt_length:]), scores, -np.inf)
    if params.temperature == 0:
        return Decision(int(scores.argmax()), gap(scores))
    scores = scores / params.temperature
    noise = gumbel(params.seed or 0, choice, len(ids), len(scores))
    exact, *shifted = (kept(scores, params, slack) + noise for slack in (0.0, -NEAR_TIE, NEAR_TIE))
    token = int(exact.argmax())
    # A border of a filter that lies so near that the winner depends on it is a tie, too.
    return Decision(token, gap(exact) if all(int(other.argmax()) == token for other in shifted) else 0.0)


def gap(scores: np.ndarray) -> float:
    second, first = np.sort(scores)[-2:]
    return float(first - second)


def penalised(logits: np.ndarray, params: SamplingParams, ids: list[int], prompt_length: int) -> np.ndarray:
    scores = logits.copy()
    for token in set(ids):
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    for token in ids[prompt_length:]:
        scores[token] -= params.frequency_penalty
    for token in set(ids[prompt_length:]):
        scores[token] -= params.presence_penalty
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    return scores


def kept(scores: np.ndarray, params: SamplingParams, slack: float) -> np.ndarray:
    """Scores with what the filters drop at -inf; `slack` moves every border, outwards if positive."""
    if 0 < params.top_k < len(scores):
        least, below = np.sort(scores)[::-1][params.top_k - 1 : params.top_k + 1]
        scores = np.where(scores >= (least - slack if slack >= 0 else max(least, below - slack)), scores, -np.inf)
    if np.isneginf(scores.max()):  # the border runs through equal scores: nothing is certain to be inside
        return scores
    if params.top_p < 1:
        order = np.argsort(-scores, kind="stable")
        before = np.concatenate([[0.0], np.cumsum(softmax(scores)[order])[:-1]])
        scores = scores.copy()
        scores[order[before >= params.top_p + slack]] = -np.inf
    if params.min_p:
        probability = softmax(scores)
        scores = np.where(probability >= params.min_p * probability.max() - slack, scores, -np.inf)
    return scores


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def gumbel(seed: int, choice: int, position: int, size: int) -> np.ndarray:
    """SplitMix64 of the token id, from a state made of seed, choice and position; its top 53 bits are the fraction."""
    key = np.uint64(seed)
    with np.errstate(over="ignore"):
        key = finalise(key + GOLDEN)
        for part in (choice, position):
            key = finalise(key + np.uint64(part) + GOLDEN)
        words = finalise(key + np.arange(1, size + 1, dtype=np.uint64) * GOLDEN)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return -np.log(-np.log(uniform))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def finalise(word: Any) -> Any:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def first_departure(decisions: list[Decision], tokens: list[int]) -> int | None:
    """Where `tokens` leave the reference, or None."""
    expected = [decision.token for decision in decisions]
    if expected == list(tokens):
        return None
    pairs = zip(expected, tokens, strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(expected), len(tokens)))
