"""The next step's drafts from a step's scores, against the same drafts by torch: in Triton's interpreter.

Shape letters: B places, K masks, W rows of a step, C model width, V vocabulary, T tiles of it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from interpreted import DEVICE, load_gpu
from stridelm.backends.gpu.draft_grower import DraftGrower
from stridelm.backends.gpu.layers import VOCABULARY_TILE, Layers, Scores
from stridelm.backends.gpu.layout import template_layout
from stridelm.backends.gpu.sampling_kernels import Drawing
from stridelm.backends.gpu.template import Template
from stridelm.backends.gpu.weights import SequentialWeights
from stridelm.models.sequential_head import SequentialHead
from stridelm.sampling import GREEDY_CANDIDATES
from stridelm.types import ROOT
from tiny import load_tiny, random_adapter

VOCABULARY = 3000
"""More tiles than candidates, the last one not full."""
CHAIN = Template.chain(3)
TREE = Template((ROOT, 0, 0, 1, 1, 2, 3, 0), 4)
"""0-1-3-6, 0-1-4, 0-2-5, 0-7; one mask is left over."""
FAN = Template((ROOT, *[0] * GREEDY_CANDIDATES), 1)
"""All that is chosen among."""


@pytest.fixture(scope="module")
def layers(tiny_folder: Callable[..., Path]) -> Layers:
    folder = tiny_folder("llama")
    return load_gpu(folder, random_adapter(load_tiny(folder)))[1].run_layers


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def layers_with(layers: Layers, head: SequentialHead | None) -> Layers:
    """With another sequential head, and more tokens to choose among."""
    width = layers.weights.width
    drafting = None if head is None else SequentialWeights.of(head, torch.float32, torch.device(DEVICE))
    embedding_VC, head_VC = drawn(VOCABULARY, width, seed=1), drawn(VOCABULARY, width, seed=2)
    weights = replace(layers.weights, embedding_VC=embedding_VC, head_VC=head_VC, sequential=drafting)
    return Layers(weights, layers.memory)


def random_head(width: int, size: int) -> SequentialHead:
    """Whose states matter as much as the masks' own scores."""
    head = SequentialHead(width, size)
    for number, parameter in enumerate(head.parameters()):
        parameter.data = drawn(*parameter.shape, seed=10 + number) * 2 / parameter.shape[-1] ** 0.5
    return head.requires_grad_(False)


def scores_of(logits_WV: torch.Tensor, width: int) -> Scores:
    spare = -logits_WV.shape[1] % VOCABULARY_TILE
    tiles_WTX = functional.pad(logits_WV, (0, spare), value=-torch.inf).unflatten(1, (-1, VOCABULARY_TILE))
    best_WT = tiles_WTX.amax(dim=2)
    return Scores(5 * drawn(len(logits_WV), width, seed=3), logits_WV, best_WT, best_WT, best_WT)


def drafts_of(
    layers: Layers, template: Template, scores: Scores, pending: list[int], ends_at: list[int], **options: int
) -> list[int]:
    """The tokens of all nodes, place by place. `options` are a DraftGrower's."""
    places, device = len(pending), torch.device(DEVICE)
    layout = template_layout(template, places, 4, layers.run, layers.memory.spare_page, device)
    layout.ids_M[: places * template.nodes] = -1
    for place, token in enumerate(pending):
        layout.ids_M[place * template.nodes] = token
    ends_at_B = torch.tensor(ends_at, dtype=torch.int32, device=device)
    DraftGrower(layers, template, places, **options)(scores, layout, Drawing(places, device), ends_at_B)
    return layout.ids_M[: places * template.nodes].tolist()


def likeliest(logits_V: torch.Tensor) -> torch.Tensor:
    """Of equal ones the first."""
    return logits_V.sort(descending=True, stable=True).indices[:GREEDY_CANDIDATES]


def expected(
    layers: Layers,
    head: SequentialHead | None,
    template: Template,
    scores: Scores,
    pending: list[int],
    ends_at: list[int],
) -> list[int]:
    """Node by node, as the sequential head is written."""
    weights, tokens = layers.weights, list[int]()
    for place, (root, end) in enumerate(zip(pending, ends_at, strict=True)):
        first = len(pending) * template.nodes + (place * template.nodes + end) * template.masks
        ids, states = [root], list[torch.Tensor]()
        for node, (parent, depth) in enumerate(zip(template.parents, template.depths, strict=True)):
            if node:
                logits_V = scores.logits_WV[first + depth - 1]
                among_N = likeliest(logits_V)
                moved_N = logits_V[among_N]
                if head is not None:
                    moved_N = moved_N + weights.head_VC[among_N] @ head.write(states[parent][0])
                rank = template.children(parent).index(node)
                ids.append(int(among_N[moved_N.sort(descending=True, stable=True).indices[rank]]))
            if head is not None and depth < template.masks:
                state_1S = states[parent] if node else head.start(1)
                output_1C, before_1C = scores.hidden_WC[first + depth][None], weights.embedding_VC[ids[node]][None]
                states.append(head(output_1C, before_1C, state_1S)[1])
            else:
                states.append(torch.empty(0))  # of a last node: read by nobody
        tokens += ids
    return tokens


@pytest.mark.parametrize(("template", "size"), [(CHAIN, 40), (TREE, 8), (TREE, None), (CHAIN, None)])
def test_drafts_are_the_sequential_heads_choice(layers: Layers, template: Template, size: int | None) -> None:
    """Of every place at the node where its walk has ended; by the masks alone where there is no such head."""
    head = None if size is None else random_head(layers.weights.width, size)
    own = layers_with(layers, head)
    pending, ends_at = [7, 2999, 130], [0, template.nodes - 1, 2]
    scores = scores_of(4 * drawn(len(pending) * template.rows, VOCABULARY), own.weights.width)
    found = drafts_of(own, template, scores, pending, ends_at)
    assert found == expected(own, head, template, scores, pending, ends_at)
    if head is not None:
        assert found != expected(own, None, template, scores, pending, ends_at), "the head has moved nothing"


@pytest.mark.parametrize("held", [1, 3])
def test_a_large_state_is_read_in_parts(layers: Layers, held: int) -> None:
    """Of which only the first are held until the state is there."""
    head = random_head(layers.weights.width, 29)
    own = layers_with(layers, head)
    template, pending, ends_at = Template.chain(6), [5, 6, 7], [1, 0, 6]
    scores = scores_of(drawn(3 * template.rows, VOCABULARY), own.weights.width)
    found = drafts_of(own, template, scores, pending, ends_at, tile_bytes=32, held_tiles=held)
    assert found == expected(own, head, template, scores, pending, ends_at)


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 130])
def test_of_equal_candidates_the_first_come_first(layers: Layers, vocabulary: int) -> None:
    """Also of those in several tiles, of which there may be fewer than candidates; and of scores below 0."""
    logits_WV = drawn(2 * FAN.rows, vocabulary).round() - 10
    assert len(logits_WV[0].unique()) < GREEDY_CANDIDATES
    own = layers_with(layers, None)
    scores = scores_of(logits_WV, own.weights.width)
    assert drafts_of(own, FAN, scores, [1, 2], [3, 0]) == expected(own, None, FAN, scores, [1, 2], [3, 0])


@pytest.mark.parametrize("places", [1, 3])
def test_what_the_head_takes_in_is_torchs(layers: Layers, places: int) -> None:
    """Several tiles of rows, of outputs and of inputs, none of the last ones full."""
    head = random_head(layers.weights.width, 40)
    own = layers_with(layers, head)
    own.block_k = 16
    weights, template, width = own.weights, CHAIN, own.weights.width
    sequential = weights.sequential
    assert sequential is not None and width > own.block_k
    scores = scores_of(drawn(places * template.rows, VOCABULARY), width)
    tokens = torch.arange(places * (template.masks * GREEDY_CANDIDATES + 1), dtype=torch.int32, device=DEVICE) * 7 + 3
    ends_at = [place % template.nodes for place in range(places)]
    ends_at_B = torch.tensor(ends_at, dtype=torch.int32, device=DEVICE)
    inputs = DraftGrower(own, template, places)._project_inputs(sequential, tokens, scores, ends_at_B)
    first = places * template.nodes
    rows = [
        first + (place * template.nodes + end) * template.masks + depth
        for place, end in enumerate(ends_at)
        for depth in range(template.masks)
    ]
    torch.testing.assert_close(inputs.moves, weights.head_VC[tokens] @ head.write.weight)
    unit_XC = functional.rms_norm(weights.embedding_VC[tokens], (width,))
    torch.testing.assert_close(inputs.before, unit_XC @ head.read.weight[:, width:].T, rtol=1e-4, atol=1e-4)
    unit_XC = functional.rms_norm(scores.hidden_WC[rows], (width,))
    by_torch = functional.linear(unit_XC, head.read.weight[:, :width], head.read.bias)
    torch.testing.assert_close(inputs.read, by_torch, rtol=1e-4, atol=1e-4)
