"""Gemma 4's assistant as a drafter: what it proposes is what it proposes in transformers, and the text stays exact."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma4Config, Gemma4VisionConfig

from command_line import Call, assert_refused
from grammars import GRAMMARS, compiled, naive
from reference import NEAR_TIE, Decision, first_departure, reference
from stepping import step_of
from stridelm import load
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.backends.torch.draft_layers import DraftConfig, first_layers, load_draft, save_draft
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import attach
from stridelm.backends.torch.trial import own_logits
from stridelm.bench.subjects import Absent
from stridelm.bench.subjects.hugging_face import hugging_face
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.contracts import Grammar
from stridelm.decode.speculative import Speculative
from stridelm.draft.assistant import AssistantDrafter
from stridelm.draft.draft_model import draw_and_confidence
from stridelm.models.support import UnsupportedModel
from stridelm.params import InputError, SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings
from stridelm.types import DraftTree, Sequence
from tiny import FAMILIES, byte_tokenizer, load_tiny, plain_network, random_adapter, save_assistant, save_tiny

PROMPTS = ("abcabcabcabd abcabc", "The quick brown fox jumps over the lazy dog, and the quick brown", "x")
"""Two are longer than the sliding window of 12 tokens, the other becomes so."""
GREEDY = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=7)
LOAD = LoadSettings(device="cpu", backend="torch", cache_tokens=2048)
SMALL: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "per_layer_config": {layer: {"head_dim": 16} for layer in (1, 3, 5)},
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 260,
    "use_double_wide_mlp": True,
}
"""What the small models of the family have: layers that read others' keys, inputs per layer, wider layers."""


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("gemma4"), "gemma4", **SMALL)


@pytest.fixture(scope="module")
def model(target_folder: Path, assistant_folder: Path) -> LanguageModel:
    return load(str(target_folder), draft_model=assistant_folder, settings=LOAD)


@pytest.fixture
def bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are k tokens long, however unsure the assistant is."""
    monkeypatch.setattr("stridelm.draft.assistant._FLOOR", 0.0)


def run(
    model: LanguageModel,
    params: SamplingParams,
    settings: DecodeSettings,
    *,
    prompts: tuple[str, ...] = PROMPTS,
    start: Callable[[], Grammar | None] = lambda: None,
) -> list[Sequence]:
    """All prompts at once. The cache must be whole after every step, and empty at the end."""
    sequences = [model.sequence(model.encode(text, raw=True), params, settings) for text in prompts]
    cache = model.engine.forward.cache
    held = cache.block_count - cache.free_blocks
    for sequence in sequences:
        sequence.grammar = start()
        model.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in sequences):
        step_of(model.engine)
        cache.check_integrity()
    assert cache.block_count - cache.free_blocks == held, "blocks were not given back"
    return sequences


def assert_exact(expected: list[list[Decision]], sequences: list[Sequence]) -> None:
    for decisions, sequence in zip(expected, sequences, strict=True):
        at = first_departure(decisions, sequence.output)
        assert at is None or decisions[at].margin < NEAR_TIE, f"token {at}"


def expected_of(model: LanguageModel, params: SamplingParams, **more: Any) -> list[list[Decision]]:
    oracle, ends = plain_network(model.target.name), model.target.eos_ids
    return [reference(oracle, model.encode(text, raw=True), params, ends, **more) for text in PROMPTS]


def totals(sequences: list[Sequence]) -> tuple[int, int]:
    """Accepted and drafted tokens."""
    accepted, drafted = (sum(getattr(each.stats, name) for each in sequences) for name in ("accepted", "drafted"))
    return accepted, drafted


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_answers_are_those_of_the_reference(params: SamplingParams, model: LanguageModel) -> None:
    expected = expected_of(model, params)
    for decoder in ("autoregressive", "draft", "ensemble", "auto"):
        assert_exact(expected, run(model, params, DecodeSettings(decoder)))


def test_layers_that_read_others_keys_keep_none(model: LanguageModel) -> None:
    """And what the cache moves when a branch is accepted is moved once."""
    run(model, GREEDY, DecodeSettings("autoregressive"))
    forward = model.engine.forward
    assert isinstance(forward, TorchForward)
    assert set(forward.memory.layers) == {0, 1, 2, 3}
    assert forward.memory.borrowed == {4: 2, 5: 3}


def test_first_layers_of_one_whose_last_layers_read_others_keys(tmp_path: Path) -> None:
    """As many of the draft model's layers have keys of their own as among the target's first ones."""
    kinds = ["sliding_attention", "full_attention"] * 2
    heads = {layer: {"head_dim": 16} for layer in (1, 3)}
    settings = {"num_hidden_layers": 4, "layer_types": kinds, "per_layer_config": heads, "num_kv_shared_layers": 2}
    base = load_checkpoint(str(save_tiny(tmp_path / "base", "gemma4", **settings)), LOAD, trainable=True)
    for layers, borrowing in ((1, 0), (3, 1)):
        draft, folder = first_layers(base.network, layers), tmp_path / f"draft of {layers}"
        assert draft.config.num_kv_shared_layers == borrowing
        save_draft(folder, DraftConfig(base.name, base.fingerprint, layers), draft)
        stored = load_draft(folder, base).network
        expected, actual = (own_logits(each) for each in (draft, stored))
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.1)  # stored as bfloat16


@torch.inference_mode()
def as_in_transformers(target: Any, assistant: Any, sequence: Sequence, text: list[int], k: int) -> DraftTree:
    """What transformers' own networks draft behind a text: one pass of the target over all but its newest token, then
    the assistant by itself. Drawn as the sequence draws."""
    read = target(
        input_ids=torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True, return_shared_kv_states=True
    )
    hidden, tokens, scores = read.hidden_states[-1][:, -1:], list(text), []
    for _ in range(k):
        embedded = target.get_input_embeddings()(torch.tensor([tokens[-1:]]))
        said = assistant(
            inputs_embeds=torch.cat([embedded, hidden], dim=-1),
            position_ids=torch.tensor([[len(text) - 1]]),
            shared_kv_states=dict(read.shared_kv_states),
        )
        token, score = draw_and_confidence(said.logits[0, -1], sequence, tokens)
        hidden = said.last_hidden_state
        tokens.append(token)
        scores.append(score)
    return DraftTree.chain(tokens[len(text) :], "transformers", scores)


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence, list[int], DraftTree]]:
    """All that assistants propose from here on, each with the text that it stands behind."""
    noted: list[tuple[Sequence, list[int], DraftTree]] = []
    propose = AssistantDrafter.propose

    def noting(self: AssistantDrafter, sequences: list[Sequence]) -> list[DraftTree]:
        trees = propose(self, sequences)
        noted.extend((each, list(each.tokens), tree) for each, tree in zip(sequences, trees, strict=True) if tree)
        return trees

    monkeypatch.setattr(AssistantDrafter, "propose", noting)
    return noted


def assert_as_in_transformers(
    folders: tuple[str, str], proposals: list[tuple[Sequence, list[int], DraftTree]], k: int
) -> None:
    assert proposals
    target, assistant = map(plain_network, folders)
    for sequence, text, tree in proposals:
        expected = as_in_transformers(target, assistant, sequence, text, k)
        assert tree.tokens == expected.tokens[: len(tree)]
        assert tree.scores == pytest.approx(expected.scores[: len(tree)], abs=1e-4)


@pytest.fixture
def crumbled(model: LanguageModel) -> Iterator[None]:
    """Half of the cache's blocks are taken, every other one, so that no two free ones are neighbours."""
    cache = model.engine.forward.cache
    tables = [cache.open(BLOCK_SIZE) for _ in range(cache.block_count)]
    for table in tables[::2]:
        cache.free(table)
    yield
    for table in tables[1::2]:
        cache.free(table)


@pytest.mark.usefixtures("bold")
@pytest.mark.parametrize("params", [pytest.param(GREEDY, marks=pytest.mark.slow), SAMPLED], ids=["greedy", "sampled"])
def test_proposals_are_those_of_transformers(
    params: SamplingParams,
    model: LanguageModel,
    assistant_folder: Path,
    proposals: list[tuple[Sequence, list[int], DraftTree]],
) -> None:
    """Behind texts within the window and beyond it, alone, in a batch, and behind a prompt that the cache knew."""
    params, k = replace(params, max_tokens=8), 3
    run(model, params, DecodeSettings("draft", k=k))
    (again,) = run(model, params, DecodeSettings("draft", k=k), prompts=PROMPTS[1:2])
    assert again.stats.reused > 0
    lengths = {len(text) for _, text, _ in proposals}
    assert min(lengths) < 12 < max(lengths)
    assert {len(tree) for _, _, tree in proposals} == {1, 2, 3}  # fewer where an answer has no room for more
    assert_as_in_transformers((model.target.name, str(assistant_folder)), proposals, k)


@pytest.mark.usefixtures("bold", "crumbled")
def test_proposals_over_scattered_blocks(
    model: LanguageModel, assistant_folder: Path, proposals: list[tuple[Sequence, list[int], DraftTree]]
) -> None:
    run(model, replace(GREEDY, max_tokens=4), DecodeSettings("draft", k=2), prompts=PROMPTS[1:2])
    assert_as_in_transformers((model.target.name, str(assistant_folder)), proposals, 2)


def save_large(folder: Path) -> tuple[Path, Path]:
    """Values that are keys, and fewer heads of them in full layers."""
    fewer = {"head_dim": 16, "num_key_value_heads": 1}
    target = save_tiny(folder / "target", "gemma4", attention_k_eq_v=True, per_layer_config={1: fewer})
    of = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    return target, save_assistant(folder / "assistant", of=of)


def save_mixture(folder: Path) -> tuple[Path, Path]:
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
    return save_tiny(folder / "target", "gemma4", **experts), save_assistant(folder / "assistant")


def save_with_eyes(folder: Path) -> tuple[Path, Path]:
    """A text model inside of one that takes pictures, too."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = FAMILIES["gemma4"].to_dict() | {"use_bidirectional_attention": "vision"}
    eyes = Gemma4VisionConfig(**sizes, num_key_value_heads=2, head_dim=8)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(Gemma4Config(text_config=text, vision_config=eyes, audio_config=None))
    network.save_pretrained(folder / "target")
    byte_tokenizer().save_pretrained(folder / "target")
    return folder / "target", save_assistant(folder / "assistant")


def save_ordered(folder: Path) -> tuple[Path, Path]:
    """The assistant scores clusters of tokens first, and then the tokens of a few clusters."""
    clusters = {"use_ordered_embeddings": True, "num_centroids": 20, "centroid_intermediate_top_k": 4}
    target, assistant = save_tiny(folder / "target", "gemma4"), save_assistant(folder / "assistant", **clusters)
    network: Any = AutoModelForCausalLM.from_pretrained(assistant)
    network.masked_embedding.token_ordering.copy_(torch.randperm(260, generator=torch.Generator().manual_seed(3)))
    network.save_pretrained(assistant)
    return target, assistant


@pytest.mark.usefixtures("bold")
@pytest.mark.parametrize("save", [save_large, save_mixture, save_with_eyes, save_ordered])
def test_other_members_of_the_family(
    save: Callable[[Path], tuple[Path, Path]], tmp_path: Path, proposals: list[tuple[Sequence, list[int], DraftTree]]
) -> None:
    target, assistant = save(tmp_path)
    model = load(str(target), draft_model=assistant, settings=LOAD)
    params, settings = replace(GREEDY, max_tokens=6), DecodeSettings("draft", k=2)
    assert_exact(expected_of(model, params), run(model, params, settings))
    if save is save_ordered:  # in a batch, what tokens of no cluster score depends on the others
        proposals.clear()
        run(model, params, settings, prompts=PROMPTS[:1])
    assert_as_in_transformers((str(target), str(assistant)), proposals, 2)


def save_successors(folder: Path, noise: float) -> tuple[Path, Path]:
    """A target that says of every byte the next one, and an assistant that knows. Their layers, and the state that the
    assistant is handed, have nothing to do with that, and have so much of a say."""
    target = save_tiny(folder / "target", "gemma4", tie_word_embeddings=False, final_logit_softcapping=None)
    assistant = save_assistant(folder / "assistant", of={"hidden_size": 32})
    own: Any = AutoModelForCausalLM.from_pretrained(target)
    other: Any = AutoModelForCausalLM.from_pretrained(assistant)
    with torch.no_grad():
        after = torch.tensor([*range(1, 256), 0, *range(256, 260)])
        own.lm_head.weight[after] = own.model.embed_tokens.weight
        other.lm_head.weight.copy_(own.lm_head.weight)
        embedded, state = other.pre_projection.weight.split(32, dim=1)
        embedded.copy_(torch.eye(32))
        state.mul_(0.3 * noise)
        for layer in (*own.model.layers, *other.model.layers):
            layer.post_attention_layernorm.weight.fill_(noise)
            layer.post_feedforward_layernorm.weight.fill_(noise)
    own.save_pretrained(target)
    other.save_pretrained(assistant)
    return target, assistant


@pytest.mark.usefixtures("bold")
@pytest.mark.parametrize("params", [GREEDY, pytest.param(SAMPLED, marks=pytest.mark.slow)], ids=["greedy", "sampled"])
def test_an_assistant_that_agrees_is_always_right(params: SamplingParams, tmp_path: Path) -> None:
    target, assistant = save_successors(tmp_path, noise=0.0)
    model, k = load(str(target), draft_model=assistant, settings=LOAD), 4
    params = replace(params, max_tokens=21)
    sequences = run(model, params, DecodeSettings("draft", k=k))
    assert_exact(expected_of(model, params), sequences)
    for sequence in sequences:
        # The prompt's own pass gives one token and no drafts, every other one k and one more.
        assert sequence.stats.forwards == 1 + -(-20 // (k + 1))
        assert sequence.stats.accepted == sequence.stats.drafted == 16
    if params.temperature == 0:
        assert all(after == (before + 1) % 256 for before, after in pairwise(sequences[0].output))


@pytest.mark.parametrize("params", [pytest.param(GREEDY, marks=pytest.mark.slow), SAMPLED], ids=["greedy", "sampled"])
def test_rejected_drafts_leave_nothing_behind(
    params: SamplingParams, tmp_path: Path, proposals: list[tuple[Sequence, list[int], DraftTree]]
) -> None:
    """It agrees now and then: what it reads after a rejection is what it would read without one."""
    target, assistant = save_successors(tmp_path, noise=1.0)
    model = load(str(target), draft_model=assistant, settings=LOAD)
    expected = expected_of(model, params)
    sequences = run(model, params, DecodeSettings("draft", k=4))
    assert_exact(expected, sequences)
    accepted, drafted = totals(sequences)
    assert 0 < accepted < drafted
    assert any(tree.scores and len(tree) < 4 for _, _, tree in proposals), "it never came to doubt a draft"
    assert_as_in_transformers((str(target), str(assistant)), proposals, 4)
    settings = DecodeSettings("ensemble", k=2, nodes=3)
    assert_exact(expected, run(model, params, settings))
    strides = model.generate(PROMPTS[2], params, decoder=settings, raw=True).strides
    assert {"assistant", "model"} <= {source for stride in strides for source in stride.sources}


@pytest.mark.parametrize(("name", "params"), [("words", SAMPLED), ("schema", GREEDY)], ids=["words", "schema"])
def test_drafts_keep_to_a_grammar(
    name: str, params: SamplingParams, model: LanguageModel, proposals: list[tuple[Sequence, list[int], DraftTree]]
) -> None:
    start, allowed = compiled(model, GRAMMARS[name].source), naive(GRAMMARS[name].pattern)
    sequences = run(model, params, DecodeSettings("draft"), start=start)
    assert_exact(expected_of(model, params, allowed=allowed), sequences)
    accepted, _ = totals(sequences)
    assert accepted > 0, "a grammar leaves so little choice that even a random assistant is right at times"
    for sequence, text, tree in proposals:
        written = text[sequence.prompt_length :]
        for depth, token in enumerate(tree.tokens):
            may = allowed([*written, *tree.tokens[:depth]])
            assert may[token] or not may.any()


def test_it_forgets_answers_that_have_ended(model: LanguageModel) -> None:
    policy = model._policy(DecodeSettings("draft", k=5))
    assert isinstance(policy, Speculative) and isinstance(policy.drafter, AssistantDrafter)
    run(model, GREEDY, DecodeSettings("draft", k=5))
    assert not policy.drafter._hidden_C


def test_a_twin_reads_its_own_cache(model: LanguageModel) -> None:
    twin = model.twin()
    assert twin.loaded.assistant is not None and twin.loaded.assistant is not model.loaded.assistant
    answers = [each.generate(PROMPTS[0], GREEDY, decoder="draft") for each in (model, twin)]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].stats.drafted == answers[1].stats.drafted > 0


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"backbone_hidden_size": 48}, "it expects hidden size 48, not 32"),
    "vocabulary": ({"of": {"vocab_size": 280}}, "it expects vocabulary 280, not 260"),
    "head size": ({"of": {"global_head_dim": 8}}, "it expects head_dim of full_attention 8, not 16"),
    "key-value heads": (
        {"of": {"num_key_value_heads": 4}},
        "it expects num_key_value_heads of sliding_attention 4, not 2",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_an_assistant_of_another_model_is_refused(what: str, target_folder: Path, tmp_path: Path, call: Call) -> None:
    changes, reason = MISFITS[what]
    folder = save_assistant(tmp_path / "assistant", **changes)
    refused = call("generate", "--model", target_folder, "--draft-model", folder, "hello")
    assert_refused(refused, str(folder), f"is the assistant of another model than {target_folder}", reason)


def test_an_assistant_is_refused_where_it_has_no_place(
    assistant_folder: Path, tiny_folder: Callable[..., Path], call: Call
) -> None:
    alone = call("generate", "--model", assistant_folder, "hello")
    assert_refused(alone, "gemma4_assistant is no language model by itself", "--draft-model")
    beside_another = call("generate", "--model", tiny_folder("llama"), "--draft-model", assistant_folder, "hello")
    assert_refused(beside_another, str(assistant_folder), "drafts for Gemma 4 models only", "is llama")


def test_a_damaged_assistant_is_refused(target_folder: Path, tmp_path: Path, call: Call) -> None:
    folder = save_assistant(tmp_path / "assistant")
    weights = load_file(folder / "model.safetensors")
    del weights["pre_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused = call("generate", "--model", target_folder, "--draft-model", folder, "hello")
    assert_refused(refused, str(folder), "the weights do not fit config.json", "pre_projection.weight")
    (folder / "model.safetensors").unlink()
    refused = call("generate", "--model", target_folder, "--draft-model", folder, "hello")
    assert_refused(refused, str(folder), "no weights there")


def test_the_command_line_takes_an_assistant(model: LanguageModel, assistant_folder: Path, call: Call) -> None:
    run = call(
        "generate", "--model", model.target.name, "--draft-model", assistant_folder, "--decoder", "draft",
        "--max-tokens", "6", "--json", "hello",
    )  # fmt: skip
    assert run.status == 0, run.err
    (answer,) = run.objects
    assert answer["decoder"] == "draft" and answer["exact"] is True


def test_an_assistant_is_found_by_its_hub_id(
    target_folder: Path, assistant_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stridelm.models.find.from_hub", {"some/assistant": assistant_folder}.__getitem__)
    assert load(str(target_folder), draft_model="some/assistant", settings=LOAD).loaded.assistant is not None


def test_an_assistant_that_says_something_else_here_is_refused(
    target_folder: Path, assistant_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stridelm.backends.torch.assistant.attend_block", lambda query, key, value, *how: torch.zeros_like(query)
    )
    with pytest.raises(UnsupportedModel, match="drafts otherwise through StrideLM"):
        load(str(target_folder), draft_model=assistant_folder, settings=LOAD)


def test_masks_are_refused_where_layers_look_tokens_up(target_folder: Path, tmp_path: Path, call: Call) -> None:
    checkpoint = load_tiny(target_folder)
    with pytest.raises(InputError, match="adapters and training are not supported"):
        attach(checkpoint.network, random_adapter(checkpoint))
    (tmp_path / "questions.txt").write_text("One\nTwo\n")
    refused = call(
        "train", "--model", target_folder, "--prompts", tmp_path / "questions.txt", "--out", tmp_path / "run",
        "--device", "cpu",
    )  # fmt: skip
    assert_refused(refused, "gemma4_text", "adapters and training are not supported")
    assert not (tmp_path / "run").exists()


def test_a_bench_leaves_transformers_out(target_folder: Path, assistant_folder: Path) -> None:
    """Its `generate` fails with an assistant (5.19), so there is nothing to compare with."""
    _, assisted, _ = hugging_face(str(target_folder), LOAD, str(assistant_folder))
    with pytest.raises(Absent, match="not measured with a Gemma 4 assistant"):
        assisted.start()
