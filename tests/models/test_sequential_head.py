"""The sequential head over chains: tokens that are known, and tokens that are chosen one after the other.

Shape letters: X chains, D depths, C model width, V vocabulary.
"""

import pytest
import torch

from stridelm.models.sequential_head import SequentialHead, choose_along

CHAINS, DEPTHS, WIDTH, VOCABULARY = 7, 4, 12, 30


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def head(random: torch.Generator) -> SequentialHead:
    made = SequentialHead(WIDTH, 5).requires_grad_(False)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=random))
    return made


def test_the_head_runs_along_chains_as_it_steps(head: SequentialHead, random: torch.Generator) -> None:
    outputs_XDC, before_XDC = torch.randn(2, CHAINS, DEPTHS, WIDTH, generator=random)
    state, steps = head.start(CHAINS), []
    for depth in range(DEPTHS):
        added, state = head(outputs_XDC[:, depth], before_XDC[:, depth], state)
        steps.append(added)
    torch.testing.assert_close(head.along(outputs_XDC, before_XDC), torch.stack(steps, dim=1))


@pytest.mark.parametrize("depths", [0, 1, DEPTHS])
@pytest.mark.parametrize("has_head", [False, True], ids=["no head", "head"])
def test_tokens_are_chosen_in_the_light_of_those_before(
    has_head: bool, depths: int, head: SequentialHead, random: torch.Generator
) -> None:
    """Read again with the tokens known, the head moves the outputs to where the same tokens are the likeliest."""
    outputs_XDC = torch.randn(CHAINS, depths, WIDTH, generator=random)
    embedding_VC, weight_VC = torch.randn(2, VOCABULARY, WIDTH, generator=random)
    first_X = torch.arange(CHAINS)
    seen: list[int] = []

    def choose(depth: int, output_XC: torch.Tensor) -> torch.Tensor:
        seen.append(depth)
        return (output_XC @ weight_VC.t()).argmax(dim=-1)

    given = head if has_head else None
    tokens = choose_along(given, outputs_XDC, first_X, lambda tokens_X: embedding_VC[tokens_X], choose)
    assert torch.equal(tokens[:, 0], first_X) and seen == list(range(depths))
    if depths:
        added_XDC = head.along(outputs_XDC, embedding_VC[tokens[:, :-1]]) if has_head else 0.0
        assert torch.equal(tokens[:, 1:], ((outputs_XDC + added_XDC) @ weight_VC.t()).argmax(dim=-1))
        plain = (outputs_XDC @ weight_VC.t()).argmax(dim=-1)
        assert torch.equal(tokens[:, 1:], plain) != has_head, "this head changes choices"
