"""Unverified decoding, ConfAdapt and static: against a loop written out, and where answers, contexts and caches end."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stridelm
from assembly import assembled, checkpoint_of, gate_of
from reference import NEAR_TIE, decide, mask_row_outputs, reference, softmax
from stepping import step_of
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.decode.adaptive import Adaptive
from stridelm.draft.block import read_chain
from stridelm.models.adapter import save_adapter
from stridelm.settings import LARGEST_K
from stridelm.types import Sequence, Stride
from tiny import load_tiny, plain_network, random_adapter
from watching import watch_rows

K_MAX = 5
"""More than the three masks that the adapters here were made for."""
CONFIDENT = 0.8
"""For `initializer_range`: a model that is sure of itself now and then."""
TEXTS = ("abcabcabd abc", "The quick brown fox jumps over the lazy dog", "x")
GREEDY = SamplingParams(max_tokens=40)
SAMPLED = SamplingParams(
    max_tokens=40, temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
    frequency_penalty=0.1, logit_bias={70: 1.0, 71: -math.inf}, seed=7,
)  # fmt: skip

Folder = Callable[..., Path]
Outputs = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Pass:
    """What one forward brings, by the loop written out."""

    tokens: list[int] = field(default_factory=list)
    margin: float = math.inf
    """How far its nearest decision was from falling otherwise."""


@dataclass(frozen=True)
class Naive:
    """A model as transformers made it, and a way to ask it about masks."""

    network: Any
    masks_say: Callable[[list[int], int], Outputs]
    """(text, masks) -> their logits, and what the output head read."""
    gate: TorchGate

    def answer(self, prompt: list[int], params: SamplingParams, k_max: int, threshold: float) -> list[Pass]:
        """Every forward runs over the whole text and its masks; no token is an end."""
        ids, passes = list(prompt), []
        while len(ids) < len(prompt) + params.max_tokens:
            room = len(prompt) + params.max_tokens - len(ids)
            passes.append(self._pass(ids, params, len(prompt), min(k_max, room), threshold))
            ids += passes[-1].tokens
        return passes

    @torch.inference_mode()
    def _pass(self, ids: list[int], params: SamplingParams, prompt_length: int, most: int, threshold: float) -> Pass:
        done, state = Pass(), torch.zeros(1, 8)
        logits = self.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        hidden = self.masks_say(ids, most - 1)[1] if most > 1 else None
        for place in range(most):
            text = ids + done.tokens
            if place > 0:
                assert hidden is not None
                logits, state = self._mask_logits(hidden[place - 1], text, state)
            decision = decide(logits.double().numpy(), params, text, prompt_length, choice=0)
            likely = softmax(logits.double().numpy())[decision.token]
            border = abs(likely - threshold) if 0 < threshold < 1 else math.inf
            done.margin = min(done.margin, decision.margin, border)
            if place == 0 or likely >= threshold:
                done.tokens.append(decision.token)
            if likely < threshold:
                break
        return done

    def _mask_logits(self, hidden: torch.Tensor, text: list[int], state: torch.Tensor) -> Outputs:
        """Every token of the vocabulary through the network's own head, moved by the token before."""
        if self.gate.sequential_head is not None:
            before = self.network.get_input_embeddings()(torch.tensor(text[-1:]))
            moved, state = self.gate.sequential_head(hidden[None], before, state)
            hidden = hidden + moved[0]
        logits, cap = self.network.lm_head(hidden), getattr(self.network.config, "final_logit_softcapping", None)
        return (logits if cap is None else cap * torch.tanh(logits / cap)), state


@pytest.fixture(scope="module")
def adapted(tiny_folder: Folder) -> Callable[..., tuple[LanguageModel, Naive]]:
    """A tiny model with a random adapter, and the same without our engine."""

    @cache
    def get(family: str = "llama", sequential_size: int = 8) -> tuple[LanguageModel, Naive]:
        checkpoint = load_tiny(tiny_folder(family, initializer_range=CONFIDENT))
        adapter = random_adapter(checkpoint, sequential_size=sequential_size)
        gate, network = attach(checkpoint.network, adapter), plain_network(checkpoint.name)
        model = assembled(checkpoint, None, LoadSettings(cache_tokens=4096), gate)
        return model, Naive(network, partial(mask_row_outputs, network, adapter), gate)

    return get


def run(
    model: LanguageModel, policy: Adaptive, prompts: list[list[int]], params: SamplingParams, eos: tuple[int, ...] = ()
) -> tuple[list[Sequence], list[list[Stride]]]:
    """All prompts at once, to their ends: the sequences, and what each forward brought them."""
    context = model.target.context_length
    sequences = [Sequence(list(ids), params, policy, frozenset(eos), context) for ids in prompts]
    strides: dict[Sequence, list[Stride]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        for sequence, stride in step_of(model.engine):
            strides[sequence].append(stride)
        model.engine.forward.cache.check_integrity()
    assert model.engine.forward.cache.free_blocks == model.engine.forward.cache.block_count
    return sequences, list(strides.values())


def policy_of(model: LanguageModel, k_max: int, threshold: float) -> Adaptive:
    assert model.gate is not None
    return Adaptive(k_max, threshold, model.gate)


def prompts_of(model: LanguageModel, texts: tuple[str, ...] = TEXTS) -> list[list[int]]:
    return [model.encode(text, raw=True) for text in texts]


def assert_same(strides: list[Stride], passes: list[Pass]) -> None:
    """Forward by forward; a decision too near to call ends the comparison."""
    for number, expected in enumerate(passes):
        brought = list(strides[number].tokens)
        if brought != expected.tokens:
            assert expected.margin < NEAR_TIE, f"forward {number} brings {brought}, not {expected.tokens}"
            return
    assert len(strides) == len(passes)


@pytest.fixture
def all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridelm.draft.block.UNVERIFIED_CANDIDATES", 1000)


# Against the loop written out


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("threshold", [0, 0.3, 0.6, 0.9, 1])
@pytest.mark.parametrize("sequential_size", [0, 8], ids=["no head", "head"])
def test_tokens_are_those_of_a_naive_loop(
    sequential_size: int, threshold: float, params: SamplingParams, adapted: Callable[..., tuple[LanguageModel, Naive]]
) -> None:
    model, naive = adapted("llama", sequential_size)
    prompts = prompts_of(model)
    _, strides = run(model, policy_of(model, K_MAX, threshold), prompts, params)
    for ids, own in zip(prompts, strides, strict=True):
        assert_same(own, naive.answer(ids, params, K_MAX, threshold))
    lengths = {len(stride.tokens) for own in strides for stride in own[:-1]}
    if threshold == 0.3:
        assert {1, K_MAX} <= lengths, "runs of several lengths"
    elif threshold in (0, 1):
        assert lengths == ({1} if threshold else {K_MAX})


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "gemma3", "mixtral"])
def test_other_families(family: str, adapted: Callable[..., tuple[LanguageModel, Naive]]) -> None:
    model, naive = adapted(family)
    prompts = prompts_of(model)
    for threshold in (0.0, 0.4):
        _, strides = run(model, policy_of(model, K_MAX, threshold), prompts, GREEDY)
        for ids, own in zip(prompts, strides, strict=True):
            assert_same(own, naive.answer(ids, GREEDY, K_MAX, threshold))


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("prefill_rows", [512, 10])
def test_batches(
    size: int, prefill_rows: int, adapted: Callable[..., tuple[LanguageModel, Naive]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many answers share a step, and however few pending rows a step takes."""
    model, naive = adapted()
    monkeypatch.setattr(model.engine.scheduler, "prefill_rows", prefill_rows)
    params = replace(SAMPLED, max_tokens=16)
    prompts = prompts_of(model, tuple(f"{number}: {'ab' * number} {'xyz' * (number % 3)}" for number in range(8)))
    for start in range(0, 8, size):
        part = prompts[start : start + size]
        _, strides = run(model, policy_of(model, K_MAX, 0.3), part, params)
        for ids, own in zip(part, strides, strict=True):
            assert_same(own, naive.answer(ids, params, K_MAX, 0.3))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_one_token_a_pass_is_the_plain_text(
    params: SamplingParams, adapted: Callable[..., tuple[LanguageModel, Naive]]
) -> None:
    model, naive = adapted()
    for policy in (policy_of(model, K_MAX, 1.0), policy_of(model, 1, 0.0)):
        prompts = prompts_of(model)
        sequences, strides = run(model, policy, prompts, params)
        for ids, sequence, own in zip(prompts, sequences, strides, strict=True):
            expected = reference(naive.network, ids, params, frozenset())
            assert_same(own, [Pass([decision.token], decision.margin) for decision in expected])
            assert sequence.stats.forwards == sequence.stats.tokens == 40


@pytest.mark.parametrize("k", [2, 3, 4, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_static_decoding_brings_k_tokens_a_pass(
    k: int, params: SamplingParams, adapted: Callable[..., tuple[LanguageModel, Naive]]
) -> None:
    model, _ = adapted()
    (sequence, *_), strides = run(model, policy_of(model, k, 0.0), prompts_of(model), params)
    for own in strides:
        assert [len(stride.tokens) for stride in own] == [k] * (40 // k) + [40 % k] * (40 % k > 0)
        for stride in own:
            assert stride.sources == ("model", *("mask",) * (len(stride.tokens) - 1))
            assert len(stride.confidence) == len(stride.tokens) and all(0 < each <= 1 for each in stride.confidence)
    assert (sequence.stats.tokens, sequence.stats.forwards) == (40, math.ceil(40 / k))
    assert not sequence.policy.exact


@pytest.mark.parametrize("masks", [1, 3, 15])
def test_masks_that_nothing_moves_say_without_candidates_what_they_say_with_them(
    masks: int, adapted: Callable[..., tuple[LanguageModel, Naive]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, naive = adapted("llama", 0)
    (ids, *_) = prompts_of(model)
    logits, hidden = naive.masks_say(ids, masks)
    # A bias of nothing changes no token, but has every mask's token drawn among candidates.
    plain, biased = (
        Sequence(ids, params, policy_of(model, masks + 1, 0.0), frozenset(), 512)
        for params in (GREEDY, replace(GREEDY, logit_bias={65: 0.0}))
    )
    assert model.gate is not None
    drawn = list(read_chain(model.gate, biased, ids, logits, hidden))
    monkeypatch.setattr("stridelm.draft.block.draw_among", pytest.fail)
    found = list(read_chain(model.gate, plain, ids, logits, hidden))
    assert len(found) == masks
    assert [token for token, _ in found] == [token for token, _ in drawn]
    assert [likely for _, likely in found] == pytest.approx([likely for _, likely in drawn], abs=1e-6)


# What a user asked for holds for tokens that nobody checks, too


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sequential_size", [0, 8], ids=["no head", "head"])
def test_biases_reach_tokens_that_are_not_among_the_likeliest(
    temperature: float,
    sequential_size: int,
    adapted: Callable[..., tuple[LanguageModel, Naive]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stridelm.draft.block.UNVERIFIED_CANDIDATES", 2)
    model, _ = adapted("llama", sequential_size)
    base = SamplingParams(max_tokens=40, temperature=temperature, seed=1)
    for bias, wanted in (({65: 1000.0}, {65}), (dict.fromkeys(range(255), -math.inf), {255, *range(256, 260)})):
        sequences, _ = run(model, policy_of(model, K_MAX, 0.0), prompts_of(model), replace(base, logit_bias=bias))
        assert {token for sequence in sequences for token in sequence.output} <= wanted


def test_everything_banned_is_refused(adapted: Callable[..., tuple[LanguageModel, Naive]]) -> None:
    model, _ = adapted()
    params = SamplingParams(logit_bias=dict.fromkeys(range(260), -math.inf))
    with pytest.raises(InputError, match="bans every token"):
        run(model, policy_of(model, K_MAX, 0.0), prompts_of(model), params)
    model.engine.reset()


def test_masks_that_say_nothing_are_an_error(tiny_folder: Folder) -> None:
    checkpoint = load_tiny(tiny_folder("llama"))
    gate = attach(checkpoint.network, random_adapter(checkpoint))
    gate.mask_embedding_DC.fill_(math.nan)
    model = assembled(checkpoint, None, LoadSettings(cache_tokens=1024), gate)
    with pytest.raises(InputError, match="not finite"):
        run(model, policy_of(model, K_MAX, 0.0), prompts_of(model), GREEDY)


# Where things end


@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_an_end_of_text_ends_the_answer_within_a_pass(
    threshold: float, adapted: Callable[..., tuple[LanguageModel, Naive]]
) -> None:
    model, _ = adapted()
    ids = prompts_of(model)[1]
    (whole,), (strides,) = run(model, policy_of(model, 4, threshold), [ids], GREEDY)
    places = {token: place for place, token in reversed(list(enumerate(whole.output)))}
    starts = np.cumsum([0, *(len(stride.tokens) for stride in strides)]).tolist()
    within = {place: token for token, place in places.items() if place not in starts}
    assert within, "some token is a mask's"
    for place, token in [*list(within.items())[:4], (starts[1], whole.output[starts[1]])]:
        end = places[token]
        (ended,), _ = run(model, policy_of(model, 4, threshold), [ids], GREEDY, eos=(token,))
        assert (ended.output, ended.finish_reason) == (whole.output[: end + 1], "stop"), place


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_max_tokens_is_exact(
    count: int, adapted: Callable[..., tuple[LanguageModel, Naive]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = adapted()
    seen = watch_rows(model, monkeypatch)
    (sequence,), strides = run(
        model, policy_of(model, 4, 0.0), prompts_of(model)[:1], replace(GREEDY, max_tokens=count)
    )
    assert (len(sequence.output), sequence.finish_reason) == (count, "length")
    # No mask asks for a token that there is no room for.
    assert [len(rows.mask_rows_M) for rows in seen] == [len(stride.tokens) - 1 for stride in strides[0]]


@pytest.mark.parametrize("prompt", [40, 46, 47])
def test_the_context_is_filled_and_not_overrun(
    prompt: int, tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_tiny(tiny_folder("llama", max_position_embeddings=48))
    gate = attach(checkpoint.network, random_adapter(checkpoint))
    model = assembled(checkpoint, None, LoadSettings(cache_tokens=1024), gate)
    seen = watch_rows(model, monkeypatch)
    (sequence,), _ = run(model, policy_of(model, 16, 0.0), [list(range(prompt))], SamplingParams(max_tokens=100))
    assert (len(sequence.tokens), sequence.finish_reason) == (48, "length")
    assert max(int(rows.positions_Q.max()) for rows in seen) < 48


@pytest.mark.parametrize("cache_tokens", [64, 192])
def test_answers_that_fill_the_cache(cache_tokens: int, adapted: Callable[..., tuple[LanguageModel, Naive]]) -> None:
    """To its last slot, alone and three at once: masks take no room but that of tokens to come."""
    model, naive = adapted()
    full = assembled(checkpoint_of(model), None, LoadSettings(cache_tokens=cache_tokens), gate_of(model))
    prompts = [[token] * 24 for token in (65, 66, 67)]
    _, strides = run(full, policy_of(full, 16, 0.0), prompts, GREEDY)
    for ids, own in zip(prompts, strides, strict=True):
        assert_same(own, naive.answer(ids, GREEDY, 16, 0.0))


def test_a_prompt_is_read_without_masks(
    adapted: Callable[..., tuple[LanguageModel, Naive]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = adapted()
    monkeypatch.setattr(model.engine.scheduler, "prefill_rows", 16)
    seen = watch_rows(model, monkeypatch)
    (sequence,), _ = run(model, policy_of(model, 4, 0.0), [[66] * 60], replace(GREEDY, max_tokens=10))
    # 16 + 16 + 16 + 12 rows of the prompt; what a pass brought is pending in the next.
    assert [(len(rows.ids_Q), len(rows.mask_rows_M)) for rows in seen] == [
        (16, 0), (16, 0), (16, 0), (15, 3), (7, 3), (5, 1),
    ]  # fmt: skip
    assert (sequence.stats.prefill_forwards, sequence.stats.forwards, sequence.stats.tokens) == (3, 3, 10)


def test_stop_strings_cut_within_a_pass(adapted: Callable[..., tuple[LanguageModel, Naive]]) -> None:
    model, _ = adapted()
    params = replace(SAMPLED, logit_bias={token: -math.inf for token in range(260) if not 33 <= token < 90})
    (whole,), (strides,) = run(model, policy_of(model, 4, 0.0), prompts_of(model)[:1], params)
    text = "".join(stride.text for stride in strides)
    stop = text[5]
    (cut,), _ = run(model, policy_of(model, 4, 0.0), prompts_of(model)[:1], replace(params, stop=(stop,)))
    assert cut.output == whole.output[: text.index(stop) + 1]
    assert cut.finish_reason == "stop"


def test_half_precision(tmp_path: Path, tiny_folder: Folder) -> None:
    folder = tiny_folder("llama", initializer_range=CONFIDENT)
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    settings = LoadSettings(device="cpu", dtype="bfloat16", cache_tokens=1024)
    model = stridelm.load(str(folder), adapter=tmp_path, settings=settings)
    for params in (GREEDY, SAMPLED):
        sequences, _ = run(model, policy_of(model, 4, 0.0), prompts_of(model), params)
        assert [len(sequence.output) for sequence in sequences] == [40] * 3


# Models that stand alone


@pytest.fixture(scope="module")
def alone(tiny_folder: Folder) -> Callable[..., tuple[LanguageModel, Naive]]:
    """A tiny model whose own token 259 is its mask, loaded as a user does."""

    @cache
    def get(family: str = "llama") -> tuple[LanguageModel, Naive]:
        folder = str(tiny_folder(family, initializer_range=CONFIDENT, mask_token_id=259))
        model = stridelm.load(folder, settings=LoadSettings(device="cpu", cache_tokens=4096))
        network = plain_network(folder)
        return model, Naive(network, partial(mask_token_outputs, network), gate_of(model))

    return get


@torch.inference_mode()
def mask_token_outputs(network: Any, text: list[int], masks: int) -> Outputs:
    """Masks behind a text are a longer text: no special row anywhere."""
    read: list[torch.Tensor] = []
    hook = network.lm_head.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    try:
        logits = network(input_ids=torch.tensor([text + [259] * masks]), use_cache=False).logits
    finally:
        hook.remove()
    return logits[0, len(text) :], read[0][0, len(text) :]


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "mixtral"])
def test_a_model_that_stands_alone(family: str, alone: Callable[..., tuple[LanguageModel, Naive]]) -> None:
    model, naive = alone(family)
    assert model.gate is not None and model.gate.k == LARGEST_K
    prompts = [*prompts_of(model), [259, 65, 259, 259]]  # a mask token of the prompt is a token
    for params, threshold in ((GREEDY, 0.0), (GREEDY, 0.4), (SAMPLED, 0.2)):
        _, strides = run(model, policy_of(model, 7, threshold), prompts, params)
        for ids, own in zip(prompts, strides, strict=True):
            assert_same(own, naive.answer(ids, params, 7, threshold))


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_drafts_of_a_model_that_stands_alone_are_verified(
    family: str, alone: Callable[..., tuple[LanguageModel, Naive]]
) -> None:
    model, _ = alone(family)
    for text in TEXTS:
        for params in (GREEDY, SAMPLED):
            plain = model.generate(text, params, decoder="autoregressive")
            drafted = model.generate(text, params, decoder="self")
            assert (drafted.token_ids, drafted.exact, drafted.exact_to) == (plain.token_ids, True, plain.exact_to)


def test_an_adapter_prevails_over_a_mask_token(tmp_path: Path, tiny_folder: Folder) -> None:
    folder = tiny_folder("llama", mask_token_id=259)
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    settings = LoadSettings(device="cpu", cache_tokens=1024)
    for adapter, k in ((tmp_path, 4), (None, LARGEST_K), ("none", LARGEST_K)):
        gate = stridelm.load(str(folder), adapter=adapter, settings=settings).gate
        assert gate is not None and gate.k == k
    assert stridelm.load(str(tiny_folder("llama")), settings=settings).gate is None
