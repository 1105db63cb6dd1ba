"""What Gumbel coupling buys: tokens per forward of sampled text, drafts drawn with the target's noise or as argmax.

    python bench/decoding/coupling.py [--tokens 128] [--json FILE]

`self` on the held-out prompts, with a fixed cost curve, so that the figures do not depend on the machine. Both ways
write the same text.
"""

import statistics
import sys
from pathlib import Path

import torch

from stridelm import LanguageModel, LoadSettings, SamplingParams, load
from stridelm.decode.cost import Cost
from stridelm.decode.planned import Planned
from stridelm.draft.mask import MaskDrafter
from stridelm.types import Sequence

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.decoding.decoders import choose_prompts
from bench.measured import RESULTS, machine, script_parser, write

COST = Cost((1, 8, 16, 32), (1.0, 1.1, 1.3, 1.8), masks=0.05, mask_row=0.01)
TEMPERATURES = (0.7, 1.0)


class ArgmaxMasks(MaskDrafter):
    """Takes what is likeliest, whatever the noise."""

    def _likeliest(
        self, tokens_N: torch.Tensor, logits_XN: torch.Tensor, sequence: Sequence, texts: list[list[int]]
    ) -> list[list[tuple[int, float]]]:
        best = logits_XN.softmax(dim=-1).topk(self.branches)
        return [
            list(zip(tokens, scores, strict=True))
            for tokens, scores in zip(tokens_N[best.indices].tolist(), best.values.tolist(), strict=True)
        ]


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "coupling.json")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    model = load(settings=LoadSettings(device="cpu"))
    texts = [prompt.text for prompt in choose_prompts(5) if not prompt.raw]
    found: dict[str, dict[str, float]] = {}
    for temperature in TEMPERATURES:
        params = SamplingParams(max_tokens=options.tokens, temperature=temperature, seed=1)
        coupled, argmax = (answer(model, texts, params, kind) for kind in (MaskDrafter, ArgmaxMasks))
        assert coupled[1] == argmax[1], "the text depends on how it was drafted"
        found[str(temperature)] = {"coupled": round(coupled[0], 3), "argmax": round(argmax[0], 3)}
        print(temperature, found[str(temperature)], flush=True)
    figures = {"machine": machine(torch.get_num_threads()), "prompts": len(texts), "tokens": options.tokens}
    write(options.json, figures | {"tokens_per_forward": found})


def answer(
    model: LanguageModel, texts: list[str], params: SamplingParams, kind: type[MaskDrafter]
) -> tuple[float, list[list[int]]]:
    """Tokens per forward, the mean over the prompts, and the answers."""
    assert model.gate is not None
    policy = Planned(COST, masks=kind(model.gate), k=model.gate.k)
    sequences = [
        Sequence(model.encode(text), params, policy, model.target.eos_ids, model.target.context_length)
        for text in texts
    ]
    for sequence in sequences:
        model.engine.add(sequence)
        while sequence.finish_reason is None:
            model.engine.step()
    return statistics.mean(each.stats.tokens_per_forward for each in sequences), [each.output for each in sequences]


if __name__ == "__main__":
    main()
