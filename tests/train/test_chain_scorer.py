"""Trees of many chains at once, against a search that takes one node after the other; and what a scorer says."""

import heapq
from collections.abc import Callable
from itertools import count

import pytest
import torch

from stridelm.arrays import signed
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.models.sequential_head import SequentialHead
from stridelm.sampling import GREEDY_CANDIDATES, gumbel_of
from stridelm.train.chain_scorer import Chains, ChainScorer, Noise, State, tree_hits

VOCABULARY, WIDTH, DEPTHS, END = 40, 6, 4, 7


class WideScorer(ChainScorer):
    """Moves outputs to something wider than they are: nothing else may know how."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        self.own_VC = torch.randn(VOCABULARY, WIDTH, generator=random)
        self.wide_VM = torch.cat([self.own_VC, torch.randn(VOCABULARY, 3, generator=random)], dim=1)
        self.read_V3 = torch.randn(VOCABULARY, 3, generator=random)

    def start(self, chains: int) -> State:
        return torch.zeros(chains, 3)

    def read(self, output_XC: torch.Tensor, before_X: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        assert state is not None
        state = torch.tanh(0.5 * state + self.read_V3[before_X])
        return torch.cat([output_XC, state], dim=1), state

    def candidates(self, output_XC: torch.Tensor, count: int) -> torch.Tensor:
        return (output_XC @ self.own_VC.t()).topk(min(count, VOCABULARY)).indices

    def score(self, moved: torch.Tensor, tokens_XN: torch.Tensor) -> torch.Tensor:
        return torch.einsum("xwm,xnm->xwn", moved, self.wide_VM[tokens_XN])


def best_first(scorer: WideScorer, chains: Chains, row: int, nodes: int) -> set[tuple[int, ...]]:
    """The paths of one chain's likeliest drafts."""
    order, found = count(), set[tuple[int, ...]]()
    waiting: list[tuple[float, int, tuple[int, ...], State]] = [(-1.0, next(order), (), scorer.start(1))]
    while waiting and len(found) <= nodes:
        path, _, tokens, state = heapq.heappop(waiting)
        found.add(tokens)
        depth = len(tokens)
        if depth == DEPTHS or tokens[-1:] == (END,):
            continue
        output_1C = chains.outputs_XDC[row : row + 1, depth]
        before = tokens[-1] if tokens else int(chains.before_XD[row, 0])
        moved_1M, state = scorer.read(output_1C, torch.tensor([before]), state)
        tokens_1N = scorer.candidates(output_1C, chains.count)
        logits_N = scorer.score(moved_1M[:, None], tokens_1N)[0, 0].double()
        if chains.noise is not None:
            position = int(chains.positions_XD[row, depth])
            noise_N = gumbel_of(tokens_1N[0], int(chains.noise.seeds_X[row]) % 2**64, 0, position)
            logits_N = (logits_N - logits_N.max()) / chains.noise.temperature + noise_N
        for token, share in zip(tokens_1N[0].tolist(), logits_N.softmax(dim=0).tolist(), strict=True):
            heapq.heappush(waiting, (path * share, next(order), (*tokens, token), state))
    return found - {()}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("nodes", [1, 3, 15, 63])
def test_a_tree_holds_the_likeliest_paths(nodes: int, temperature: float) -> None:
    scorer, random = WideScorer(), torch.Generator().manual_seed(nodes)
    outputs_XDC = torch.randn(60, DEPTHS, WIDTH, generator=random)
    positions_XD = torch.randint(2, 99, (60, 1), generator=random) + torch.arange(DEPTHS)
    seeds_X = torch.tensor([signed(2**64 - 1 - seed) for seed in range(60)])
    noise = Noise(temperature, seeds_X) if temperature else None
    before_XD = torch.randint(0, VOCABULARY, (60, DEPTHS), generator=random)
    blank = Chains(outputs_XDC, before_XD, before_XD, positions_XD, noise)
    trees = [best_first(scorer, blank, row, nodes) for row in range(60)]
    assert {len(tree) for tree in trees} == {nodes}
    # The right texts: each goes along a path of the tree, and leaves it somewhere.
    right = [max(tree, key=len) if row % 2 else min(tree) for row, tree in enumerate(trees)]
    right_XD = torch.tensor([[*path, *[VOCABULARY - 1] * DEPTHS][:DEPTHS] for path in right])
    chains = Chains(outputs_XDC, before_XD, right_XD, positions_XD, noise)
    hits_XD = tree_hits(scorer, chains, nodes, torch.tensor([END]))
    for tree, right_D, hits_D in zip(trees, right_XD.tolist(), hits_XD.tolist(), strict=True):
        expected = [tuple(right_D[: depth + 1]) in tree for depth in range(DEPTHS)]
        assert hits_D == expected
    assert hits_XD.any()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_scorer_says_what_the_head_over_all_tokens_says(family: str, trainable: Callable[..., Checkpoint]) -> None:
    network = trainable(family).network
    size = network.config.get_text_config().hidden_size
    torch.manual_seed(0)
    head = SequentialHead(size, 5)
    torch.nn.init.normal_(head.write.weight)
    scorer = ChainScorer(network, head)
    outputs_XDC, before_XD = torch.randn(7, 3, size), torch.randint(0, 50, (7, 3))
    with torch.no_grad():
        along, state, depths = scorer.along(outputs_XDC, before_XD), scorer.start(7), []
        for depth in range(3):
            moved, state = scorer.read(outputs_XDC[:, depth], before_XD[:, depth], state)
            depths.append(moved)
        assert torch.allclose(torch.stack(depths, dim=1), along, atol=1e-5)
        moved_XM = along[:, 0]
        logits_XV, tokens_XN = scorer.head(moved_XM), scorer.candidates(outputs_XDC[:, 0], GREEDY_CANDIDATES)
        assert torch.equal(tokens_XN, scorer.head(outputs_XDC[:, 0]).topk(GREEDY_CANDIDATES).indices)
        expected_XN = logits_XV.gather(1, tokens_XN)
        assert torch.allclose(scorer.score(moved_XM, tokens_XN), expected_XN, atol=1e-5)
        nodes_XWN = scorer.score(torch.stack([moved_XM, 2 * moved_XM], dim=1), tokens_XN)
        assert torch.allclose(nodes_XWN[:, 0], expected_XN, atol=1e-5)
        ranked_XV = logits_XV.argsort(dim=-1, descending=True, stable=True)
        assert scorer.ranks(moved_XM, ranked_XV[:, 4]).tolist() == [5] * 7
        assert scorer.ranks(moved_XM, scorer.best(moved_XM)).tolist() == [1] * 7
