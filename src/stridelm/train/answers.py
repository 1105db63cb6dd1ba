"""A model's own greedy answers to the prompts of a file, for measurements."""

import numpy as np

from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.models.encode import encode_prompt
from stridelm.params import InputError
from stridelm.prompts import PromptLine
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.rollouts import Report, Text


def greedy_answers(
    checkpoint: Checkpoint, lines: list[PromptLine], max_tokens: int, batch: int, report: Report
) -> dict[int, Text]:
    """Prompt number -> its text. `batch` answers are generated at once."""
    prompts: list[RolloutPrompt] = []
    for line in lines:
        try:
            tokens = encode_prompt(checkpoint, line.prompt)
        except InputError as error:
            raise InputError(f"{line.place}: {error}") from error
        prompts.append(RolloutPrompt(tuple(tokens), min(max_tokens, checkpoint.context_length - len(tokens))))
    # Prompts of similar length run together: one long prompt would widen the cache of all others in its batch.
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].tokens))
    texts: dict[int, Text] = {}
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        width = max(len(prompts[number].tokens) + prompts[number].max_tokens for number in part)
        engine = RolloutEngine(checkpoint, len(part), width)
        for place, answer in engine.run(prompts[number] for number in part):
            prompt = prompts[part[place]].tokens
            texts[part[place]] = Text(np.array([*prompt, *answer], dtype=np.int32), len(prompt))
            report("answering", len(texts), len(prompts))
    return texts
