"""Run in vLLM's environment, by tests/export/test_vllm.py: what a drafter proposes, step by step.

    python tests/export/vllm_drafts.py MODEL DRAFTER DRAFTS < prompts.json > drafts.json

Folders as `stridelm export --to vllm` writes them; prompts are lists of token ids, all asked at once. Each answer comes
with the answer without a drafter; then there is a record of [the place of the newest token, that token, the drafts] for
every chain of every draft pass.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "stridelm",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def main(model: str, drafter: str, drafts: int, prompts: list[list[int]]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    from stridelm.export.vllm_plugin import drafter as plugin_drafter
    from stridelm.export.vllm_plugin.imports import DraftModelProposer
    from stridelm.export.vllm_plugin.proposer import GatedProposer

    plugin_drafter.DRAFT_CANDIDATES = 1000  # all of a tiny vocabulary: what is compared looks at all of it
    seen: list[Any] = []
    classes: set[str] = set()

    def watch(proposer: Any) -> None:
        propose = proposer.propose

        def watched(self: Any, **arguments: Any) -> Any:
            # Read first: vLLM's own proposer writes into what it is given.
            last = arguments["token_indices_to_sample"]
            if last is None:
                last = arguments["common_attn_metadata"].query_start_loc[1:] - 1
            places = (arguments["target_positions"][last] + 1).tolist()
            result = propose(self, **arguments)
            seen.extend(zip(places, arguments["next_token_ids"].tolist(), result.tolist(), strict=True))
            classes.add(type(self).__name__)
            return result

        proposer.propose = watched

    for proposer in (GatedProposer, DraftModelProposer):
        watch(proposer)
    speculative = {
        "method": "draft_model",
        "model": drafter,
        "num_speculative_tokens": drafts,
        "parallel_drafting": True,
    }
    asked = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers: list[list[list[int]]] = []
    for config in (None, speculative):
        llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            speculative_config=config,
        )
        found = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
        answers.append([list(each.outputs[0].token_ids) for each in found])
        del llm
    return {"plain": answers[0], "drafted": answers[1], "drafts": seen, "proposers": sorted(classes)}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.load(sys.stdin))
    json.dump(found, sys.stdout)
