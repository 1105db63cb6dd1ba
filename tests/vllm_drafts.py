"""Run in vLLM's environment, by tests/test_vllm.py: what the gated drafter proposes, step by step.

    python tests/vllm_drafts.py FOLDER DRAFTS < prompts.json > drafts.json

FOLDER as `stridelm export --to vllm` writes it; prompts are lists of token ids. Each answer comes with the answer
without a drafter's, and with a record of [the place of the newest token, that token, the drafts] of every draft pass.
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


def main(folder: str, drafts: int, prompts: list[list[int]]) -> list[dict[str, Any]]:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    from stridelm.interop.vllm_plugin.proposer import GatedProposer

    seen: list[Any] = []
    proposer: Any = GatedProposer
    propose = proposer.propose

    def watched(self: Any, **arguments: Any) -> Any:
        result = propose(self, **arguments)
        last = arguments["token_indices_to_sample"]
        if last is None:
            last = arguments["common_attn_metadata"].query_start_loc[1:] - 1
        places = (arguments["target_positions"][last] + 1).tolist()
        seen.extend(zip(places, arguments["next_token_ids"].tolist(), result.tolist(), strict=True))
        return result

    proposer.propose = watched
    speculative = {
        "method": "draft_model",
        "model": f"{folder}/drafter",
        "num_speculative_tokens": drafts,
        "parallel_drafting": True,
    }
    answers: list[dict[str, Any]] = []
    asked = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    for config in (None, speculative):
        llm = LLM(
            f"{folder}/model",
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            speculative_config=config,
        )
        for number, prompt in enumerate(prompts):
            seen.clear()
            output = llm.generate({"prompt_token_ids": prompt}, asked, use_tqdm=False)[0].outputs[0]
            if config is None:
                answers.append({"plain": list(output.token_ids)})
            else:
                answers[number] |= {"drafted": list(output.token_ids), "drafts": list(seen)}
        del llm
    return answers


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = main(sys.argv[1], int(sys.argv[2]), json.load(sys.stdin))
    json.dump(found, sys.stdout)
