"""The base model that all conversions are held against: what it writes itself, and what it thinks of what they wrote.

Shape letters: B texts, T tokens of a text, X tokens of answers, C model width, V vocabulary.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

from bench.decoding.text_quality import Judged
from stridelm import InputError, LoadSettings
from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.files import write_json
from stridelm.models.encode import encode_prompt
from stridelm.prompts import PromptLine
from stridelm.train.rollout_engine import RolloutEngine, RolloutPrompt
from stridelm.train.students.student import OutputHead, read_texts

_HEAD_LOGITS = 2**27
FOREIGN_PROBABILITY = 1e-9
"""Of a token beyond the base model's vocabulary, such as a mask token that a conversion added and then wrote."""

Tokens = tuple[int, ...]


class BaseModel:
    """Loaded once for all subjects, with transformers' own layers."""

    def __init__(self, name: str, settings: LoadSettings, lines: list[PromptLine], max_tokens: int, batch: int) -> None:
        self.checkpoint = load_checkpoint(name, settings, trainable=True)
        self.head = OutputHead(self.checkpoint.network)
        self.device = self.checkpoint.network.device
        self.prompts = [tuple(encode_prompt(self.checkpoint, line.prompt)) for line in lines]
        self.max_tokens = max_tokens
        self.batch = batch
        longest = max(map(len, self.prompts)) + max_tokens
        if longest > self.checkpoint.context_length:
            raise InputError(
                f"prompt and answer may take {longest} tokens, more than {name}'s context of "
                f"{self.checkpoint.context_length}: ask for fewer with --max-tokens"
            )
        self.longest = longest

    def plain_answers(self, file: Path | None) -> list[Tokens]:
        """What the base model writes one token at a time, to every prompt; kept in the file, if one is named."""
        made_by = {"fingerprint": self.checkpoint.fingerprint, "max_tokens": self.max_tokens}
        if file is not None and file.is_file():
            return self._kept(file, made_by)
        engine = RolloutEngine(self.checkpoint, min(self.batch, len(self.prompts)), self.longest)
        answers = dict(engine.run(RolloutPrompt(tokens, self.max_tokens) for tokens in self.prompts))
        ordered = [tuple(answers[number]) for number in range(len(self.prompts))]
        if file is not None:
            pairs = [{"prompt": prompt, "answer": own} for prompt, own in zip(self.prompts, ordered, strict=True)]
            write_json(file, made_by | {"answers": pairs})
        return ordered

    def _kept(self, file: Path, made_by: dict[str, Any]) -> list[Tokens]:
        kept = json.loads(file.read_text())
        if {name: kept[name] for name in made_by} != made_by:
            raise InputError(f"{file}: was written by another model or with other --max-tokens: name another file")
        answers = {tuple(pair["prompt"]): tuple(pair["answer"]) for pair in kept["answers"]}
        if missing := sum(prompt not in answers for prompt in self.prompts):
            raise InputError(f"{file}: lacks {missing} of {len(self.prompts)} prompts: name another file")
        return [answers[prompt] for prompt in self.prompts]

    def judge(self, answers: list[Tokens]) -> list[Judged]:
        """One forward over prompts and answers, a batch at a time."""
        pairs = list(zip(self.prompts, answers, strict=True))
        parts = [pairs[start : start + self.batch] for start in range(0, len(pairs), self.batch)]
        return [judged for part in parts for judged in self._judge(part)]

    @torch.no_grad()
    def _judge(self, pairs: list[tuple[Tokens, Tokens]]) -> list[Judged]:
        vocabulary = self.checkpoint.vocabulary
        ids_BT = torch.zeros(len(pairs), max(len(prompt) + len(answer) for prompt, answer in pairs), dtype=torch.int64)
        for row, (prompt, answer) in enumerate(pairs):
            ids_BT[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        # The row before a token predicts it.
        rows_X = torch.cat(
            [
                torch.arange(len(answer)) + row * ids_BT.shape[1] + len(prompt) - 1
                for row, (prompt, answer) in enumerate(pairs)
            ]
        )
        answers_X = ids_BT.flatten()[rows_X + 1]
        is_foreign_X = answers_X >= vocabulary
        known_BT = ids_BT.clamp(max=vocabulary - 1).to(self.device)
        _, hidden = read_texts(self.checkpoint.network, known_BT)
        hidden_XC, known_X = hidden[rows_X.to(self.device)], answers_X.clamp(max=vocabulary - 1).to(self.device)
        size = max(1, _HEAD_LOGITS // vocabulary)
        parts = [
            self._log_probabilities_and_ranks(*part)
            for part in zip(hidden_XC.split(size), known_X.split(size), strict=True)
        ]
        log_X, rank_X = (torch.cat(each).cpu() for each in zip(*parts, strict=True))
        log_X[is_foreign_X], rank_X[is_foreign_X] = math.log(FOREIGN_PROBABILITY), vocabulary + 1
        lengths = [len(answer) for _, answer in pairs]
        return [
            Judged(tuple(log.tolist()), tuple(log.exp().tolist()), tuple(rank.tolist()))
            for log, rank in zip(log_X.split(lengths), rank_X.split(lengths), strict=True)
        ]

    def _log_probabilities_and_ranks(
        self, hidden_XC: torch.Tensor, tokens_X: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_XV = self.head(hidden_XC).log_softmax(dim=-1)
        log_X1 = log_XV.gather(1, tokens_X[:, None])
        return log_X1[:, 0].double(), (log_XV > log_X1).sum(dim=-1) + 1
