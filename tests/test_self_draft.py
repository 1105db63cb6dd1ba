"""The decoder self: what its masks read, which drafts it chooses, and how it behaves where room runs out."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stridelm
from reference import decide, mask_row_outputs, reference
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.decode.self_draft import SelfDraft
from stridelm.draft.mask import MaskDrafter
from stridelm.model.adapter import Adapter, save_adapter
from stridelm.model.gated import Gate, attach
from stridelm.model.load import Checkpoint
from stridelm.settings import DecodeSettings
from stridelm.types import Rows, Sequence
from tiny import load_tiny, plain_network, random_adapter

Converted = Callable[..., tuple[Checkpoint, Gate]]
TEXTS = ("abcabcabd abc", "The quick brown fox jumps over the lazy dog", "x")
SAMPLED = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
    frequency_penalty=0.1, logit_bias={70: 1.0, 71: float("-inf")}, seed=7,
)  # fmt: skip


def converted_model(converted: Converted, family: str = "llama", cache_tokens: int = 2048) -> LanguageModel:
    checkpoint, gate = converted(family)
    return LanguageModel(checkpoint, None, LoadSettings(cache_tokens=cache_tokens), gate)


class KnowingMasks(MaskDrafter):
    """Proposes what is right up to a random depth, and looks at what it is given to choose from."""

    def __init__(self, gate: Gate, folder: str, adapter: Adapter, answers: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__(gate)
        self.folder, self.adapter, self.answers = folder, adapter, answers
        self.random = random.Random(3)
        self.looked_at = 0

    def choose(
        self, sequences: list[Sequence], texts: list[list[int]], logits_XDV: torch.Tensor, hidden_XDC: torch.Tensor
    ) -> list[list[int]]:
        drafts: list[list[int]] = []
        for chain, (sequence, text) in enumerate(zip(sequences, texts, strict=True)):
            # The chain's anchor is the token before the one just drawn.
            masks = logits_XDV.shape[1]
            logits, hidden = mask_row_outputs(plain_network(self.folder), self.adapter, text[:-1], masks)
            torch.testing.assert_close(logits_XDV[chain], logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(hidden_XDC[chain], hidden, rtol=1e-4, atol=1e-4)
            self.looked_at += 1
            answer = self.answers[tuple(text[: sequence.prompt_length])]
            future = answer[len(text) - sequence.prompt_length :][:masks]
            right = self.random.randint(0, len(future))
            drafts.append(future[:right] + [(token + 1) % 250 for token in future[right:]])
        return drafts


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "mixtral"])
@pytest.mark.parametrize("k", [2, 4])
def test_the_masks_where_the_path_ends_are_those_of_a_naive_forward(family: str, k: int, converted: Converted) -> None:
    """Over whole answers, with paths of every length: prefix from the cache, tree and masks in one fused step."""
    model = converted_model(converted, family)
    prompts = [model.encode(text, raw=True) for text in TEXTS]
    params = SamplingParams(max_tokens=24)
    network = plain_network(model.target.name)
    known = [[each.token for each in reference(network, ids, params, model.target.eos_ids)] for ids in prompts]
    assert model.gate is not None
    policy = SelfDraft(k, model.gate)
    policy.drafter = KnowingMasks(
        model.gate, model.target.name, random_adapter(model.target), dict(zip(map(tuple, prompts), known, strict=True))
    )
    sequences = [
        Sequence(list(ids), params, policy, model.target.eos_ids, model.target.context_length) for ids in prompts
    ]
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        model.engine.step()
        model.engine.forward.cache.check_integrity()
    assert [sequence.output for sequence in sequences] == known
    assert policy.drafter.looked_at > 20
    assert all(0 < sequence.stats.accepted < sequence.stats.drafted for sequence in sequences)
    assert all(sequence.stats.forwards < sequence.stats.tokens for sequence in sequences)
    assert policy._drafts == {}


def naive_drafts(gate: Gate, network: Any, sequence: Sequence, text: list[int], hidden_DC: torch.Tensor) -> list[int]:
    """Depth by depth, every token of the vocabulary scored through the network's own head."""
    cap = getattr(network.config, "final_logit_softcapping", None)
    drafts: list[int] = []
    state = torch.zeros(1, 8)
    for hidden_C in hidden_DC:
        ids = text + drafts
        moved_C = torch.zeros_like(hidden_C)
        if gate.sequential_head is not None:
            before = network.get_input_embeddings()(torch.tensor(ids[-1:]))
            moved_1C, state = gate.sequential_head(hidden_C[None], before, state)
            moved_C = moved_1C[0]
        logits = network.lm_head(hidden_C + moved_C)
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        choice = decide(logits.double().numpy(), sequence.params, ids, sequence.prompt_length, sequence.choice)
        drafts.append(choice.token)
    return drafts


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "no head"])
@torch.inference_mode()
def test_drafts_equal_a_choice_written_out(
    family: str, params: SamplingParams, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stridelm.draft.mask.CANDIDATES", 1000)  # as many as there are
    size, family = (0, "llama") if family == "no head" else (8, family)
    checkpoint = load_tiny(tiny_folder(family))
    gate = attach(checkpoint.network, random_adapter(checkpoint, sequential_size=size))
    network = plain_network(str(tiny_folder(family)))
    hidden_XDC = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(0))
    logits_XDV = network.lm_head(hidden_XDC)
    if gate.softcap is not None:
        logits_XDV = gate.softcap * torch.tanh(logits_XDV / gate.softcap)
    texts = [list(range(40 + chain, 60)) for chain in range(4)]
    policy = SelfDraft(4, gate)
    sequences = [Sequence(text[:10], params, policy, frozenset(), 512, choice=n) for n, text in enumerate(texts)]
    drafts = MaskDrafter(gate).choose(sequences, texts, logits_XDV, hidden_XDC)
    for chain, sequence in enumerate(sequences):
        assert drafts[chain] == naive_drafts(gate, network, sequence, texts[chain], hidden_XDC[chain])
    # The head reads what was drawn: another token before, other drafts.
    others = MaskDrafter(gate).choose(sequences, [[*text[:-1], 99] for text in texts], logits_XDV, hidden_XDC)
    assert (others != drafts) == (size > 0) or params.changes_logits


def test_few_candidates_leave_the_rest_of_the_distribution(converted: Converted, monkeypatch) -> None:
    monkeypatch.setattr("stridelm.draft.mask.CANDIDATES", 2)
    model = converted_model(converted)
    banned = SamplingParams(max_tokens=20, logit_bias={token: float("-inf") for token in range(255)})
    for params in (banned, SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, seed=1)):
        plain = model.generate(TEXTS[0], params, decoder="autoregressive")
        assert model.generate(TEXTS[0], params, decoder="self").token_ids == plain.token_ids


def watch_rows(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    seen: list[Rows] = []
    forward = model.engine.forward

    def watched(rows: Rows, tables: list[Any]) -> Any:
        seen.append(rows)
        return forward(rows, tables)

    watched.cache = forward.cache  # type: ignore[attr-defined]
    monkeypatch.setattr(model.engine, "forward", watched)
    return seen


@pytest.mark.parametrize("cache_tokens", [64, 80, 192, 208, 1024])
def test_masks_take_only_room_that_nobody_needs(
    cache_tokens: int, converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that fill the cache to its last slot, alone and three at once."""
    model = converted_model(converted, cache_tokens=cache_tokens)
    texts = ["a" * 24, "bc" * 12, "def" * 8]
    params = SamplingParams(max_tokens=40)
    assert len(model.encode(texts[0], raw=True)) == 24
    plain = model.generate(texts, params, decoder="autoregressive", raw=True)
    seen = watch_rows(model, monkeypatch)
    drafted = model.generate(texts, params, decoder="self", raw=True)
    assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
    assert any(len(rows.mask_rows_M) for rows in seen)
    cache = model.engine.forward.cache
    cache.check_integrity()
    assert cache.free_blocks == cache.block_count


def test_where_there_is_room_masks_hang_off_every_node_that_has_a_use_for_them(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the end of an answer that fills its blocks: rows for masks are set aside beside those for its tokens."""
    model = converted_model(converted)
    policy: Any = model._policy(DecodeSettings("self", k=4))
    policy.drafter.choose = lambda sequences, texts, logits, hidden: [[65, 66, 67]] * len(texts)
    seen = watch_rows(model, monkeypatch)
    model.generate("a" * 24, SamplingParams(max_tokens=40), decoder=DecodeSettings("self", k=4), raw=True)
    for rows in seen[1:]:
        room, drafts = 64 - (rows.starts[0] + 1), len(rows.ids_Q) - len(rows.mask_rows_M) - 1
        anchors = max(0, min(drafts, room - 3) + 1)
        assert (drafts, len(rows.mask_rows_M)) == (min(3, room - 1), 3 * anchors)


def test_no_row_lies_beyond_the_context(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_tiny(tiny_folder("llama", max_position_embeddings=48))
    gate = attach(checkpoint.network, random_adapter(checkpoint, masks=8))
    model = LanguageModel(checkpoint, None, LoadSettings(cache_tokens=1024), gate)
    plain = model.generate("a" * 20, SamplingParams(max_tokens=100), decoder="autoregressive", raw=True)
    seen = watch_rows(model, monkeypatch)
    result = model.generate("a" * 20, SamplingParams(max_tokens=100), decoder=DecodeSettings("self", k=9), raw=True)
    assert result.token_ids == plain.token_ids
    assert max(int(rows.positions_Q.max()) for rows in seen) < 48


def test_a_prompt_is_read_without_masks_and_the_last_tokens_are_written_without(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stridelm.engine.scheduler.PREFILL_ROWS", 16)
    model = converted_model(converted)
    seen = watch_rows(model, monkeypatch)
    for max_tokens, k in ((1, 4), (2, 4), (3, 1)):
        result = model.generate(
            "b" * 60, SamplingParams(max_tokens=max_tokens), decoder=DecodeSettings("self", k=k), raw=True
        )
        assert (result.stats.tokens, result.stats.drafted) == (max_tokens, 0)
    assert not any(len(rows.mask_rows_M) for rows in seen)
    seen.clear()
    model.generate("b" * 60, SamplingParams(max_tokens=3), decoder="self", raw=True)
    # 16 + 16 + 16 + 12 rows of the prompt: masks behind the last part, none once a single token is left.
    assert [len(rows.mask_rows_M) for rows in seen][:4] == [0, 0, 0, 3]
    assert not len(seen[-1].mask_rows_M)


def test_sequences_of_other_decoders_share_the_step(converted: Converted) -> None:
    model = converted_model(converted)
    params = SamplingParams(max_tokens=24)
    alone = [model.generate(text, params, decoder="autoregressive").token_ids for text in TEXTS]
    decoders = ("self", "autoregressive", "ngram")
    answers = [model.stream(text, params, decoder=name) for text, name in zip(TEXTS, decoders, strict=True)]
    assert [answer.result().token_ids for answer in answers] == alone


def test_an_answer_that_is_given_up_is_forgotten(converted: Converted) -> None:
    model = converted_model(converted)
    answer = model.stream(TEXTS[0], SamplingParams(max_tokens=40), decoder="self")
    next(answer)
    policy: Any = model._policy(DecodeSettings("self"))
    assert answer.sequence in policy._drafts
    answer.close()
    assert policy._drafts == {}


def test_drafts_end_where_the_text_does(converted: Converted) -> None:
    model = converted_model(converted)
    policy: Any = model._policy(DecodeSettings("self", k=4))
    policy.drafter.choose = lambda sequences, texts, logits, hidden: [[65, 256, 66]] * len(texts)
    answer = model.stream(TEXTS[0], SamplingParams(max_tokens=40), decoder=DecodeSettings("self", k=4))
    next(answer)
    assert policy._drafts[answer.sequence].tokens == (65, 256)


def test_what_a_decoder_needs_and_takes() -> None:
    DecodeSettings("self", k=4).check(has_draft=False, mask_k=4)
    with pytest.raises(InputError, match="at most 4"):
        DecodeSettings("self", k=5).check(has_draft=False, mask_k=4)
    with pytest.raises(InputError, match="stridelm train"):
        DecodeSettings("self").check(has_draft=True, mask_k=0)


def test_load_with_an_adapter(tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    folder, settings = str(tiny_folder("qwen3")), LoadSettings(device="cpu", cache_tokens=1024)
    save_adapter(tmp_path, random_adapter(load_tiny(Path(folder))))
    plain = stridelm.load(folder, settings=settings).generate("abcabc", SamplingParams(max_tokens=20))
    assert plain.decoder == "auto"
    model = stridelm.load(folder, adapter=tmp_path, settings=settings)
    for loaded in (model, model.twin()):
        result = loaded.generate("abcabc", SamplingParams(max_tokens=20))
        assert (result.decoder, result.token_ids, result.exact) == ("auto", plain.token_ids, True)
        assert result.exact_to == plain.exact_to
        assert result.stats.drafted > 0
    with pytest.raises(InputError, match="at most 4"):
        model.generate("abcabc", decoder=DecodeSettings("self", k=5))
    assert stridelm.load(folder, adapter="none", settings=settings).gate is None


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_half_precision_runs(family: str, tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    """The layers are transformers' own there."""
    folder = tiny_folder(family)
    save_adapter(tmp_path, random_adapter(load_tiny(folder)))
    settings = LoadSettings(device="cpu", dtype="bfloat16", cache_tokens=1024)
    model = stridelm.load(str(folder), adapter=tmp_path, settings=settings)
    result = model.generate("abcabc", SamplingParams(max_tokens=20))
    assert (result.decoder, result.exact) == ("auto", False)
    assert result.stats.drafted > 0


def test_the_builtin_models_own_adapter(
    tmp_path: Path, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken for the built-in model alone, and `none` turns it off."""
    folder = tiny_folder("llama")
    save_adapter(tmp_path / "own", random_adapter(load_tiny(folder)))
    monkeypatch.setattr("stridelm.model.builtin.ensure_builtin", lambda: folder)
    monkeypatch.setattr("stridelm.model.builtin.builtin_adapter", lambda: tmp_path / "own")
    settings = LoadSettings(device="cpu", cache_tokens=1024)
    assert stridelm.load("smollm2", settings=settings).gate is not None
    assert stridelm.load("smollm2", adapter="none", settings=settings).gate is None
    assert stridelm.load(str(folder), settings=settings).gate is None
