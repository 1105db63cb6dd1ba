"""The sequential head: makes the drafts of one chain consistent with each other.

The mask rows of a step run in parallel, so none of them knows which token was drawn before it. This head reads that
token, then each draft that is chosen, and changes the mask row's output accordingly: "panda bamboo" or "cat meat", not
"panda meat". It is a gated recurrent cell over the depths of a chain. What it adds goes through the base model's own
output matrix, so only the likeliest candidates of a row need new scores.

In torch, chains are read only here: by `SequentialHead.along` if the tokens are known, by `choose_along` if each token
is chosen given those before it. Other implementations must agree with `choose_along`; they exist because torch is not
available there or is too slow:

    draft/block.py, draft/grow.py          one depth at a time through `contracts.Gate`: sampling, grammars and trees
    backends/native/sequential.h, grow.h   the same trees in C++
    backends/gpu/draft_kernels.py          the same trees in Triton
    export/custom_generate/generate.py     a script that travels with an exported model, without StrideLM
    train/chain_scorer.py                  trees of many texts at once, for measurements

Shape letters: X chains, C model width, S state size, D depths.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class SequentialHead(nn.Module):
    """At each depth: (mask row's output, embedding of the token before, state) -> what to add to the output, state."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.read = nn.Linear(2 * width, 2 * size)
        self.carry = nn.Linear(size, 2 * size, bias=False)
        self.write = nn.Linear(size, width, bias=False)
        nn.init.zeros_(self.write.weight)  # initially it changes nothing

    def start(self, chains: int) -> torch.Tensor:
        return self.read.bias.new_zeros(chains, self.size)

    def forward(
        self, output_XC: torch.Tensor, before_XC: torch.Tensor, state_XS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state_XS = self._next(self._read(output_XC, before_XC), state_XS)
        return self.write(state_XS), state_XS

    def along(self, outputs_XDC: torch.Tensor, before_XDC: torch.Tensor) -> torch.Tensor:
        """What to add to each output, for all depths of chains whose tokens are known."""
        # The part that does not depend on the previous depth is one product over all depths.
        read_XDS = self._read(outputs_XDC, before_XDC)
        state_XS, states = self.start(len(outputs_XDC)).to(read_XDS.dtype), []
        for depth in range(outputs_XDC.shape[1]):
            state_XS = self._next(read_XDS[:, depth], state_XS)
            states.append(state_XS)
        return self.write(torch.stack(states, dim=1))

    def _read(self, output: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return self.read(torch.cat([_unit(output), _unit(before)], dim=-1))

    def _next(self, read_XS: torch.Tensor, state_XS: torch.Tensor) -> torch.Tensor:
        gate_XS, candidate_XS = (read_XS + self.carry(state_XS)).chunk(2, dim=-1)
        return torch.lerp(state_XS, candidate_XS.tanh(), gate_XS.sigmoid())


def choose_along(
    head: SequentialHead | None,
    outputs_XDC: torch.Tensor,
    before_X: torch.Tensor,
    embed: Callable[[torch.Tensor], torch.Tensor],
    choose: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Choose the tokens of chains, depth by depth: the head reads each token before the next is chosen. Returns
    `before_X` followed by the chosen tokens, X x (1 + D).

    `before_X`: the token before each chain's first; `embed`: tokens -> embeddings; `choose`: (depth, outputs X x C as
    the head changed them) -> tokens. Without a head the outputs are used as they are."""
    tokens = [before_X]
    state_XS = None if head is None else head.start(len(outputs_XDC))
    for depth, output_XC in enumerate(outputs_XDC.unbind(dim=1)):
        if head is not None and state_XS is not None:
            added_XC, state_XS = head(output_XC.float(), embed(tokens[-1]).float(), state_XS)
            output_XC = output_XC + added_XC
        tokens.append(choose(depth, output_XC))
    return torch.stack(tokens, dim=1)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Scale to a mean square of one: model families differ in the scale of outputs and embeddings."""
    return functional.rms_norm(x, x.shape[-1:])
