"""The sequential head: lets the drafts of one block fit each other.

The mask rows of a step are run side by side, so none of them has seen which token was drawn before it. This head reads
that token, then each draft that is chosen, and moves the mask row's output accordingly: "panda bamboo" or "cat meat",
not "panda meat". It is a gated recurrent cell over the depths of a chain; what it adds goes through the base model's
own output matrix, so only the likeliest candidates of a row need to be scored anew.

Shape letters: X chains, C model width, S state size, D depths, N candidates.
"""

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
        nn.init.zeros_(self.write.weight)  # at first it changes nothing

    def start(self, chains: int) -> torch.Tensor:
        return self.read.bias.new_zeros(chains, self.size)

    def forward(
        self, output_XC: torch.Tensor, before_XC: torch.Tensor, state_XS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.cat([_unit(output_XC), _unit(before_XC)], dim=-1)
        gate_XS, candidate_XS = (self.read(seen) + self.carry(state_XS)).chunk(2, dim=-1)
        state_XS = torch.lerp(state_XS, candidate_XS.tanh(), gate_XS.sigmoid())
        return self.write(state_XS), state_XS

    def along(self, outputs_XDC: torch.Tensor, before_XDC: torch.Tensor) -> torch.Tensor:
        """All depths of chains whose tokens are known: what to add to each output."""
        # The part that does not wait for the depth before is one product over all of them.
        read_XDS = self.read(torch.cat([_unit(outputs_XDC), _unit(before_XDC)], dim=-1))
        state_XS, states = self.start(len(outputs_XDC)).to(read_XDS.dtype), []
        for depth in range(outputs_XDC.shape[1]):
            gate_XS, candidate_XS = (read_XDS[:, depth] + self.carry(state_XS)).chunk(2, dim=-1)
            state_XS = torch.lerp(state_XS, candidate_XS.tanh(), gate_XS.sigmoid())
            states.append(state_XS)
        return self.write(torch.stack(states, dim=1))


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Of mean square one: families differ in how large their outputs and embeddings are."""
    return functional.rms_norm(x, x.shape[-1:])
