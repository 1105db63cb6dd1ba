"""Domain adaptation: tokens per forward of a gated adapter before and after it was trained on one domain's prompts, on
that domain and on others.

Measured as `stridelm acceptance` does, on the model's own greedy answers, which no gated adapter changes: the figures
of all adapters are of the same texts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.models.adapter import check_base, load_adapter
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError
from stridelm.prompts import PromptLine
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import Measure, total
from stridelm.train.answers import greedy_answers
from stridelm.train.students.readers import MaskReader
from stridelm.train.students.student import Student

Progress = Callable[[str], None]
"""Told, in a line, of every figure."""


def adaptation(
    model: str,
    before: str | Path | None,
    after: str | Path,
    domains: Mapping[str, list[PromptLine]],
    trained_on: str,
    *,
    others: Mapping[str, str | Path] | None = None,
    settings: LoadSettings | None = None,
    max_tokens: int = 200,
    batch: int = 64,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Before and after, domain by domain. `before` is None for the adapter that comes with the model; `trained_on`
    names the domain that the second adapter was trained for; `others` are measured beside the two, by their names."""
    if trained_on not in domains:
        raise InputError(f"there is no domain {trained_on!r} among those measured: {', '.join(domains)}")
    adapters: dict[str, str | Path | None] = {"before": before, "after": after, **(others or {})}
    measured = acceptance_by_domain(
        model, adapters, domains, settings=settings, max_tokens=max_tokens, batch=batch, progress=progress
    )
    return {
        "domains": [
            {
                "domain": domain,
                **{name: measured[name][domain]["tokens_per_forward"] for name in adapters},
                "prompts": len(lines),
                "trained_on": domain == trained_on,
            }
            for domain, lines in domains.items()
        ]
    }


def acceptance_by_domain(
    model: str,
    adapters: Mapping[str, str | Path | None],
    domains: Mapping[str, list[PromptLine]],
    *,
    settings: LoadSettings | None = None,
    max_tokens: int = 200,
    batch: int = 64,
    progress: Progress | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Adapter -> domain -> tokens per forward and acceptance by depth. The answers are written once for all."""
    settings, say = settings or LoadSettings(), progress or (lambda line: None)
    checkpoint = load_checkpoint(model, settings, trainable=True)
    texts = {
        domain: list(greedy_answers(checkpoint, lines, max_tokens, batch, lambda what, done, of: None).values())
        for domain, lines in domains.items()
    }
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, place in adapters.items():
        folder = adapter_folder(model, place)
        if folder is None:
            raise InputError(f"{model} has no adapter of its own to compare with: name one")
        adapter = load_adapter(folder)
        if not adapter.is_gated:
            raise InputError(f"{folder}: this adapter changes the model's answers, so there is nothing to compare")
        check_base(folder, adapter, checkpoint.name, checkpoint.fingerprint)
        measure = Measure(MaskReader(checkpoint.network, Student.of(checkpoint.network, adapter)))
        found[name] = {}
        for domain, written in texts.items():
            tally = total(each for _, each in measure(written))
            found[name][domain] = {"tokens": tally.tokens, **tally.entry}
            say(f"{name}, {domain}: {tally.sentence}")
    return found
