"""The decoder self: what its masks read, which drafts it chooses, and how it behaves where room runs out."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stridelm
from assembly import assembled, checkpoint_of, gate_of
from reference import gumbel, kept, mask_row_outputs, penalised, reference
from stepping import step_of
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.draft.grow import Chain
from stridelm.draft.mask import MaskDrafter
from stridelm.models.adapter import Adapter, save_adapter
from stridelm.settings import DecodeSettings
from stridelm.types import DraftTree, Sequence
from tiny import load_tiny, plain_network, random_adapter
from watching import watch_rows

Converted = Callable[..., tuple[Checkpoint, TorchGate]]
COSTS = {
    "free rows": Cost((1,), (1.0,)),
    "dear rows": Cost((1, 4, 5, 64), (1.0, 1.05, 1.2, 12.0), masks=0.1),
    "two stages": Cost((1,), (1.0,), head=0.001, head_row=0.01),
}
TEXTS = ("abcabcabd abc", "The quick brown fox jumps over the lazy dog", "x")
SAMPLED = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2,
    frequency_penalty=0.1, logit_bias={70: 1.0, 71: float("-inf")}, seed=7,
)  # fmt: skip


def converted_model(converted: Converted, family: str = "llama", cache_tokens: int = 2048) -> LanguageModel:
    checkpoint, gate = converted(family)
    return assembled(checkpoint, None, LoadSettings(cache_tokens=cache_tokens), gate)


class KnowingMasks(MaskDrafter):
    """Proposes what is right up to a random depth, and looks at what it is given to choose from."""

    def __init__(
        self, gate: TorchGate, folder: str, adapter: Adapter, answers: dict[tuple[int, ...], list[int]]
    ) -> None:
        super().__init__(gate)
        self.folder, self.adapter, self.answers = folder, adapter, answers
        self.random = random.Random(3)
        self.looked_at: Counter[int] = Counter()
        """Masks that were used up already -> how often such a chain was seen."""
        self.went_on = False
        """Whether a chain had places behind its masks."""

    def draft(self, sequences: list[Sequence], chains: list[Chain], *, depth: int, floor: float) -> list[DraftTree]:
        trees: list[DraftTree] = []
        for sequence, chain in zip(sequences, chains, strict=True):
            text, masks = sequence.tokens, len(chain.hidden_DC)
            # The token after the anchor was drawn with it, and every used mask's place was taken since.
            before = text[: len(text) - 1 - chain.used]
            network, trained = plain_network(self.folder), min(masks, self.adapter.config.masks)
            logits, hidden = mask_row_outputs(network, self.adapter, before, trained)
            if masks > trained:
                tail = self.adapter.tail_heads()
                assert tail is not None
                further = tail(hidden[-1:])[0]
                logits, hidden = torch.cat([logits, network.lm_head(further)]), torch.cat([hidden, further])
                self.went_on = True
            torch.testing.assert_close(chain.logits_DV, logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(chain.hidden_DC, hidden, rtol=1e-4, atol=1e-4)
            self.looked_at[chain.used] += 1
            answer = self.answers[tuple(text[: sequence.prompt_length])]
            future = answer[len(text) - sequence.prompt_length :][: chain.left]
            right = self.random.randint(0, len(future))
            tokens = future[:right] + [(token + 1) % 250 for token in future[right:]]
            trees.append(DraftTree.chain(tokens, "self", [0.7] * len(tokens)))
        return trees


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "mixtral"])
@pytest.mark.parametrize("cost", ["free rows", "dear rows", "two stages"])
def test_the_masks_that_drafts_come_from_are_those_of_a_naive_forward(
    family: str, cost: str, converted: Converted
) -> None:
    """Over whole answers, with paths of every length: prefix from the cache, tree and masks in one fused step, masks
    that hang some tokens back."""
    model = converted_model(converted, family)
    prompts = [model.encode(text, raw=True) for text in TEXTS]
    params = SamplingParams(max_tokens=24)
    network = plain_network(model.target.name)
    known = [[each.token for each in reference(network, ids, params, model.target.eos_ids)] for ids in prompts]
    adapter = random_adapter(checkpoint_of(model))
    drafter = KnowingMasks(
        gate_of(model), model.target.name, adapter, dict(zip(map(tuple, prompts), known, strict=True))
    )
    policy = Planned(COSTS[cost], masks=drafter, k=4)
    sequences = [
        Sequence(list(ids), params, policy, model.target.eos_ids, model.target.context_length) for ids in prompts
    ]
    for sequence in sequences:
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(model.engine)
        model.engine.forward.cache.check_integrity()
    assert [sequence.output for sequence in sequences] == known
    assert drafter.looked_at.total() > 15 and (drafter.went_on or cost != "free rows")
    if cost == "dear rows":
        assert drafter.looked_at[1] + drafter.looked_at[2] > 3, "no chain was used a second time"
    assert all(0 < sequence.stats.accepted < sequence.stats.drafted for sequence in sequences)
    assert all(sequence.stats.forwards < sequence.stats.tokens for sequence in sequences)
    assert policy._states == {}


def naive_scores(
    gate: TorchGate, network: Any, sequence: Sequence, hidden_DC: torch.Tensor, tokens: list[int]
) -> torch.Tensor:
    """What decides the next draft once these tokens have come since the chain's anchor: every token of the vocabulary
    scored through the network's own head, the sequential head having read all of them."""
    cap = getattr(network.config, "final_logit_softcapping", None)
    state, moved_C = torch.zeros(1, 8), torch.zeros_like(hidden_DC[0])
    for hidden_C, token in zip(hidden_DC, tokens, strict=False):
        if gate.sequential_head is not None:
            before = network.get_input_embeddings()(torch.tensor([token]))
            moved_1C, state = gate.sequential_head(hidden_C[None], before, state)
            moved_C = moved_1C[0]
    logits = network.lm_head(hidden_DC[len(tokens) - 1] + moved_C)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    params, ids = sequence.params, sequence.tokens[:-1] + tokens
    scores = penalised(logits.double().numpy(), params, ids, sequence.prompt_length)
    if params.temperature > 0:
        scores = kept(scores / params.temperature - (scores / params.temperature).max(), params, 0.0)
        scores = scores + gumbel(params.seed or 0, sequence.choice, len(ids), len(scores))
    return torch.from_numpy(scores).softmax(dim=-1)


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "no head"])
@torch.inference_mode()
def test_a_grown_tree_equals_choices_written_out(
    family: str, params: SamplingParams, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node's token and score, its children being the likeliest; with fresh chains and with used ones."""
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):  # as many as there are
        monkeypatch.setattr(f"stridelm.draft.grow.{name}", 10000)
    size, family = (0, "llama") if family == "no head" else (8, family)
    checkpoint = load_tiny(tiny_folder(family))
    gate = attach(checkpoint.network, random_adapter(checkpoint, sequential_size=size))
    network = plain_network(str(tiny_folder(family)))
    hidden_XDC = torch.randn(4, 4, 32, generator=torch.Generator().manual_seed(0))
    logits_XDV = network.lm_head(hidden_XDC)
    if gate.softcap is not None:
        logits_XDV = gate.softcap * torch.tanh(logits_XDV / gate.softcap)
    drafter = MaskDrafter(gate, branches=3)
    sequences, chains, since = [], [], []
    for number in range(4):
        sequence = Sequence(list(range(40, 50)), params, Autoregressive(), frozenset(), 512, choice=number)
        chain = Chain(logits_XDV[number], hidden_XDC[number])
        came = [60 + number, 70, 80][: 1 + number % 3]  # drawn with the anchor, and what has come since
        sequence.tokens += came
        drafter.advance(chain, came)
        assert chain.used == len(came) - 1
        sequences, chains, since = [*sequences, sequence], [*chains, chain], [*since, came]
    for sequence, hidden_DC, came, tree in zip(
        sequences, hidden_XDC, since, drafter.draft(sequences, chains, depth=4, floor=1e-9), strict=True
    ):
        assert max(tree.depths) == 4 - (len(came) - 1)
        for node in range(-1, len(tree)):
            path = path_to(tree, node)
            children = [child for child, parent in enumerate(tree.parents) if parent == node]
            if not children:
                continue
            expected = naive_scores(gate, network, without(sequence, came), hidden_DC, came + path)
            best = expected.topk(3)
            assert [tree.tokens[child] for child in children] == best.indices.tolist()[: len(children)]
            assert [tree.scores[child] for child in children] == pytest.approx(
                best.values.tolist()[: len(children)], rel=1e-3, abs=1e-6
            )


def without(sequence: Sequence, came: list[int]) -> Sequence:
    """The sequence before these tokens came, and a place for the first of them: what `naive_scores` starts from."""
    twin = Sequence(sequence.tokens[: -len(came)], sequence.params, sequence.policy, frozenset(), 512,
                    choice=sequence.choice)  # fmt: skip
    twin.tokens = [*sequence.tokens[: -len(came)], 0]
    return twin


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [] if node == -1 else [*path_to(tree, tree.parents[node]), tree.tokens[node]]


@torch.inference_mode()
def test_unlikely_nodes_are_left_out_and_nothing_follows_an_end(converted: Converted) -> None:
    _, gate = converted("llama")
    hidden_DC = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    logits_DV = torch.full((3, 260), -20.0)
    logits_DV[:, 65], logits_DV[:, 256] = 3.0, 2.9
    gate_without_head = MaskDrafter(gate)
    gate_without_head._read = lambda chains, level, before, states: (None, states)  # type: ignore[method-assign]
    sequence = Sequence([1, 2], SamplingParams(), Autoregressive(), frozenset([256]), 512)
    (tree,) = gate_without_head.draft([sequence], [Chain(logits_DV, hidden_DC)], depth=3, floor=0.2)
    likely, end = tree.scores[:2]
    assert (tree.tokens, tree.parents) == ((65, 256, 65, 256), (-1, -1, 0, 0))
    assert likely**3 < 0.2 < likely * end


def test_few_candidates_leave_the_rest_of_the_distribution(converted: Converted, monkeypatch) -> None:
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):
        monkeypatch.setattr(f"stridelm.draft.grow.{name}", 2)
    model = converted_model(converted)
    banned = SamplingParams(max_tokens=20, logit_bias={token: float("-inf") for token in range(255)})
    for params in (banned, SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, seed=1)):
        plain = model.generate(TEXTS[0], params, decoder="autoregressive")
        assert model.generate(TEXTS[0], params, decoder="self").token_ids == plain.token_ids


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


def test_where_rows_are_free_masks_hang_off_every_node_that_has_a_use_for_them(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the end of an answer that fills its blocks: rows for masks are set aside beside those for its tokens."""
    model = converted_model(converted)
    assert model.gate is not None
    policy = Planned(COSTS["free rows"], masks=MaskDrafter(model.gate), k=4)
    tree = DraftTree.chain([65, 66, 67], "self", [0.5] * 3)
    monkeypatch.setattr(policy.masks, "draft", lambda sequences, chains, depth, floor: [tree] * len(sequences))
    monkeypatch.setattr(policy, "_learn", lambda sequence, commit: None)  # the drafts are wrong: it would notice
    monkeypatch.setattr(model, "_policy", lambda settings: policy)
    seen = watch_rows(model, monkeypatch)
    model.generate("a" * 24, SamplingParams(max_tokens=40), decoder="self", raw=True)
    for rows in seen[1:]:
        room, drafts = 64 - (rows.starts[0] + 1), len(rows.ids_Q) - len(rows.mask_rows_M) - 1
        anchors = max(0, min(drafts, room - 3) + 1)
        assert drafts == min(3, room - 1)
        assert len(rows.mask_rows_M) == 3 * anchors


def test_no_row_lies_beyond_the_context(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_tiny(tiny_folder("llama", max_position_embeddings=48))
    gate = attach(checkpoint.network, random_adapter(checkpoint, masks=8))
    model = assembled(checkpoint, None, LoadSettings(cache_tokens=1024), gate)
    plain = model.generate("a" * 20, SamplingParams(max_tokens=100), decoder="autoregressive", raw=True)
    seen = watch_rows(model, monkeypatch)
    result = model.generate("a" * 20, SamplingParams(max_tokens=100), decoder=DecodeSettings("self", k=9), raw=True)
    assert result.token_ids == plain.token_ids
    assert max(int(rows.positions_Q.max()) for rows in seen) < 48


def test_a_prompt_is_read_without_masks_and_the_last_tokens_are_written_without(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = converted_model(converted)
    model.engine.scheduler.prefill_rows = 16
    seen = watch_rows(model, monkeypatch)
    for max_tokens, k in ((1, 4), (2, 4), (3, 1)):
        result = model.generate(
            "b" * 60, SamplingParams(max_tokens=max_tokens), decoder=DecodeSettings("self", k=k), raw=True
        )
        assert (result.stats.tokens, result.stats.drafted) == (max_tokens, 0)
    assert not any(len(rows.mask_rows_M) for rows in seen)
    seen.clear()
    model.generate("c" * 60, SamplingParams(max_tokens=3), decoder="self", raw=True)
    # 16 + 16 + 16 + 12 rows of the prompt: masks behind the last part, none once a single token is left.
    assert [len(rows.mask_rows_M) > 0 for rows in seen][:4] == [False, False, False, True]
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
    assert answer.sequence in policy._states
    answer.close()
    assert policy._states == {}


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
    monkeypatch.setattr("stridelm.models.builtin.ensure_builtin", lambda: folder)
    monkeypatch.setattr("stridelm.models.builtin.builtin_adapter", lambda: tmp_path / "own")
    ungated = replace(random_adapter(load_tiny(folder), masks=2, sequential_size=0), is_gated=False)
    save_adapter(tmp_path / "ungated", ungated)
    monkeypatch.setattr("stridelm.models.builtin.builtin_ungated", lambda: tmp_path / "ungated")
    settings = LoadSettings(backend="torch", device="cpu", cache_tokens=1024)
    named = stridelm.load("smollm2", adapter="smollm2-ungated", settings=settings)
    assert named.gate is not None and named.gate.k == 3
    with pytest.raises(stridelm.InputError, match=r"no adapter\.json"):
        stridelm.load(str(folder), adapter="smollm2-ungated", settings=settings)
    assert stridelm.load("smollm2", settings=settings).gate is not None
    assert stridelm.load("smollm2", adapter="none", settings=settings).gate is None
    assert stridelm.load(str(folder), settings=settings).gate is None
