"""How the chains of a student become drafts, for measurements: many chains at once, chains of drafts and trees.

`ChainScorer` reads a chain depth by depth: a mask's output, moved by what the sequential head says after reading the
token before, and logits of that. Nothing outside of it knows how an output is moved. `chain_hits` and `tree_hits` draft
from chains off anchors in texts that are known, so it is enough to say which drafts are the text's own tokens.

Shape letters: X chains, D depths of a chain, C model width, M width of what outputs are moved to, N candidates, V
vocabulary, W nodes of one depth of a tree, Y = X x W nodes of all trees.
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from stridelm.backends.common.scorer import capped
from stridelm.models.sequential_head import SequentialHead
from stridelm.sampling import DRAFT_CANDIDATES, GREEDY_CANDIDATES, gumbel_among
from stridelm.train.students.student import CHUNK_LOGITS, OutputHead

State = torch.Tensor | None
"""What the sequential head remembers of the tokens that it has read; None without a head."""


class ChainScorer:
    """From masks' outputs to logits, with the sequential head or without."""

    def __init__(self, network: PreTrainedModel, sequential: SequentialHead | None) -> None:
        self.head = OutputHead(network)
        self.embedding = network.get_input_embeddings()
        self.sequential = sequential

    def start(self, chains: int) -> State:
        return None if self.sequential is None else self.sequential.start(chains)

    def read(self, output_XC: torch.Tensor, before_X: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Move the outputs of one depth by the tokens before them. Returns these, X x M, and the new state."""
        if self.sequential is None or state is None:
            return output_XC, state
        added_XC, state = self.sequential(output_XC.float(), self.embedding(before_X).float(), state)
        return output_XC + added_XC, state

    def along(self, outputs_XDC: torch.Tensor, before_XD: torch.Tensor) -> torch.Tensor:
        """`read` at every depth of chains whose tokens are known: X x D x M. Faster, as depths share products."""
        if self.sequential is None:
            return outputs_XDC
        return outputs_XDC + self.sequential.along(outputs_XDC.float(), self.embedding(before_XD).float())

    def pick(self, state: State, rows_Y: torch.Tensor) -> State:
        """The states of some rows, which may repeat."""
        return None if state is None else state[rows_Y]

    def candidates(self, output_XC: torch.Tensor, count: int) -> torch.Tensor:
        """The likeliest tokens by the outputs themselves, before they are moved, best first: X x N."""
        return self.head.likeliest(output_XC, count)

    def score(self, moved: torch.Tensor, tokens_XN: torch.Tensor) -> torch.Tensor:
        """Logits of some tokens: X x N. Several nodes that share their candidates give X x W x M and get X x W x N. In
        chunks, as each row gathers the weights of its candidates."""
        rows = max(1, CHUNK_LOGITS // (tokens_XN.shape[1] * moved.shape[-1]))
        parts = zip(moved.split(rows), tokens_XN.split(rows), strict=True)
        return torch.cat([self._score(part, tokens) for part, tokens in parts])

    def _score(self, moved: torch.Tensor, tokens_XN: torch.Tensor) -> torch.Tensor:
        linear = self.head.linear
        # In float32, as decoding has these: rounded to bfloat16, near candidates would often be equal.
        rows_XNC, hidden = linear.weight[tokens_XN].float(), moved.to(linear.weight.dtype).float()
        logits = (hidden if moved.dim() == 3 else hidden[:, None]) @ rows_XNC.transpose(1, 2)
        if linear.bias is not None:
            logits = logits + linear.bias[tokens_XN].float()[:, None]
        return capped(logits if moved.dim() == 3 else logits[:, 0], self.head.softcap)

    def best(self, moved_XM: torch.Tensor) -> torch.Tensor:
        """The likeliest token of the whole vocabulary."""
        return self.head.best(moved_XM)

    def ranks(self, moved_XM: torch.Tensor, tokens_X: torch.Tensor) -> torch.Tensor:
        """The rank of one token per row among the whole vocabulary: 1 for `best`."""
        ranks: list[torch.Tensor] = []
        start = 0
        for part in self.head.chunks(moved_XM):
            tokens = tokens_X[start : start + len(part), None]
            logits = self.head(part)
            own = logits.gather(1, tokens)
            # Of equal logits, the smaller token is taken.
            is_first = torch.arange(logits.shape[1], device=logits.device) < tokens
            ranks.append(1 + ((logits > own) | ((logits == own) & is_first)).sum(dim=1))
            start += len(part)
        return torch.cat(ranks)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise that texts were drawn with: their drafts are drawn with the same."""

    temperature: float
    seeds_X: torch.Tensor
    """As int64 (`arrays.signed`)."""

    def perturbed(self, logits: torch.Tensor, tokens_XN: torch.Tensor, positions_X: torch.Tensor) -> torch.Tensor:
        """The scores of which a draw takes the best, as `sampling.perturbed_among`: X x N, or X x W x N for several
        nodes at the same position."""
        noise = gumbel_among(self.seeds_X, positions_X, tokens_XN)
        scores = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        return scores.double() + (noise if logits.dim() == 2 else noise[:, None])


@dataclass(frozen=True, slots=True)
class Chains:
    """Outputs of masks off one anchor each, and the tokens of the text that they are about."""

    outputs_XDC: torch.Tensor
    before_XD: torch.Tensor
    """The text's token before each that is to be drafted; the first is the newest."""
    right_XD: torch.Tensor
    """The text's tokens that are to be drafted."""
    positions_XD: torch.Tensor
    """Their positions."""
    noise: Noise | None = None
    """None for greedy texts."""

    @classmethod
    def off(
        cls, ids_XT: torch.Tensor, anchors_X: torch.Tensor, outputs_XDC: torch.Tensor, noise: Noise | None
    ) -> "Chains":
        """A chain off one anchor in each text. The mask at depth d off position a stands at a + d + 1, and proposes the
        token behind itself."""
        depths_D = torch.arange(1, outputs_XDC.shape[1] + 1, device=ids_XT.device)
        places_XD = anchors_X[:, None] + depths_D
        return cls(outputs_XDC, ids_XT.gather(1, places_XD), ids_XT.gather(1, places_XD + 1), places_XD + 1, noise)

    @property
    def count(self) -> int:
        """Number of candidates that drafts are chosen among. Noise lifts tokens from further down than the head."""
        return GREEDY_CANDIDATES if self.noise is None else DRAFT_CANDIDATES


def chain_hits(scorer: ChainScorer, chains: Chains) -> torch.Tensor:
    """Whether the draft at each depth is the text's token, if those before it are: X x D. Greedy drafts are chosen from
    the whole vocabulary."""
    if chains.noise is not None:
        return first_choices(scorer, chains)[1]
    moved = scorer.along(chains.outputs_XDC, chains.before_XD).flatten(0, 1)
    return scorer.best(moved).view_as(chains.right_XD) == chains.right_XD


def first_choices(scorer: ChainScorer, chains: Chains) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of the best candidate at each depth, as decoding has it, and whether that is the text's token, if those
    before it are: X x D each."""
    moved = scorer.along(chains.outputs_XDC, chains.before_XD).flatten(0, 1)
    noise, right_XD = chains.noise, chains.right_XD
    tokens = scorer.candidates(chains.outputs_XDC.flatten(0, 1), chains.count)
    scores = scorer.score(moved, tokens)
    if noise is not None:
        each = Noise(noise.temperature, noise.seeds_X.repeat_interleave(right_XD.shape[1]))
        scores = each.perturbed(scores, tokens, chains.positions_XD.flatten())
    shares, best = scores.softmax(dim=-1).max(dim=-1, keepdim=True)
    return shares.view_as(right_XD), tokens.gather(1, best).view_as(right_XD) == right_XD


def tree_hits(scorer: ChainScorer, chains: Chains, nodes: int, ends: torch.Tensor) -> torch.Tensor:
    """Whether a tree of so many drafts holds the text's own tokens down to each depth: X x D.

    The tree has the nodes with the largest path probabilities: products of the drafts' shares, as `draft/grow.py` has
    them. A path only becomes less likely with depth, so the parents of these nodes are among them, and no node that is
    not among the likeliest `nodes` of its own depth can be one. `ends`: tokens that end a text get no children.
    """
    outputs_XDC, right_XD, noise = chains.outputs_XDC, chains.right_XD, chains.noise
    count, depths, _ = outputs_XDC.shape
    tokens_XDN = scorer.candidates(outputs_XDC.flatten(0, 1), chains.count).unflatten(0, (count, depths))
    first_X1 = torch.arange(count, device=right_XD.device)[:, None]
    state, before_XW = scorer.start(count), chains.before_XD[:, :1]
    path_XW, is_right_XW = outputs_XDC.new_ones(count, 1, dtype=torch.float64), torch.ones_like(before_XW).bool()
    paths: list[torch.Tensor] = []
    rights: list[torch.Tensor] = []
    for depth in range(depths):
        width, tokens_XN = before_XW.shape[1], tokens_XDN[:, depth]
        output_YC = outputs_XDC[:, depth].repeat_interleave(width, dim=0)
        moved_YM, state = scorer.read(output_YC, before_XW.flatten(), state)
        scores_XWN = scorer.score(moved_YM.unflatten(0, (count, width)), tokens_XN).double()
        if noise is not None:
            scores_XWN = noise.perturbed(scores_XWN, tokens_XN, chains.positions_XD[:, depth])
        open_XW = path_XW.masked_fill(torch.isin(before_XW, ends), 0.0) if depth else path_XW
        reached = (open_XW[..., None] * scores_XWN.softmax(dim=-1)).flatten(1)
        path_XW, kept_XW = reached.topk(min(nodes, reached.shape[1]))
        parents_XW = kept_XW // tokens_XN.shape[1]
        before_XW = tokens_XN.gather(1, kept_XW % tokens_XN.shape[1])
        is_right_XW = is_right_XW.gather(1, parents_XW) & (before_XW == right_XD[:, depth, None])
        state = scorer.pick(state, (first_X1 * width + parents_XW).flatten())
        paths.append(path_XW)
        rights.append(is_right_XW)
    return _among_likeliest(paths, rights, nodes)


def _among_likeliest(paths: list[torch.Tensor], rights: list[torch.Tensor], nodes: int) -> torch.Tensor:
    """Per depth, whether a right node is among the likeliest of all depths, and so are those that it follows: X x D."""
    all_XA = torch.cat(paths, dim=1)
    best = all_XA.topk(min(nodes, all_XA.shape[1])).indices
    is_kept_XA = torch.zeros_like(all_XA, dtype=torch.bool).scatter(1, best, True)
    kept = is_kept_XA.split([path_XW.shape[1] for path_XW in paths], dim=1)
    found = [(right_XW & kept_XW).any(dim=1) for right_XW, kept_XW in zip(rights, kept, strict=True)]
    return torch.stack(found, dim=1).cumprod(dim=1) > 0
