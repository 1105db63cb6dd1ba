"""`stridelm acceptance`: how good a conversion is, independent of the machine."""

import json as jsonlib
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.converted import load_converted
from stridelm.backends.torch.draft_layers import load_layers
from stridelm.backends.torch.heads import heads_for, load_heads
from stridelm.models.adapter import load_adapter
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError
from stridelm.prompts import read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import HeadsReader, MaskReader, Measure, ModelReader, Reader, Tally, total
from stridelm.train.answers import greedy_answers
from stridelm.train.display import Display
from stridelm.train.settings import MEASURED_DRAFTS, PlaceSettings
from stridelm.train.students.student import MaskRows, Student

_LARGEST_BATCH = 4096
_MOST_MASKS = 15
"""Of a model that stands alone and does not say how many it was trained with: as many as published ones have."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    model: str
    adapter: Path | None
    heads: Path | None
    draft_model: Path | None
    prompts: Path
    max_tokens: int
    batch: int
    sequential_head: bool
    json: bool
    place: PlaceSettings


def run(request: Request) -> None:
    if not 2 <= request.max_tokens <= 2**20:
        raise InputError(f"--max-tokens must be between 2 and {2**20}, not {request.max_tokens}")
    if not 1 <= request.batch <= _LARGEST_BATCH:
        raise InputError(f"--batch must be between 1 and {_LARGEST_BATCH}, not {request.batch}")
    if sum(given is not None for given in (request.adapter, request.heads, request.draft_model)) > 1:
        raise InputError("one measurement is of --adapter, --heads or --draft-model: leave the others out")
    lines = read_prompts(request.prompts)
    checkpoint, reader = _reader(request)
    with Display() as display:
        texts = greedy_answers(checkpoint, lines, request.max_tokens, request.batch, display.report)
        measure = Measure(reader)
        tallies: dict[int, Tally] = {}
        numbers = {id(text): number for number, text in texts.items()}
        for text, tally in measure(texts.values()):
            tallies[numbers[id(text)]] = tally
            display.report("walking", len(tallies), len(texts))
    by_category: dict[str, list[Tally]] = defaultdict(list)
    for number, tally in sorted(tallies.items()):
        if (category := lines[number].category) is not None:
            by_category[category].append(tally)
    whole = total(tallies.values())
    categories = {category: total(part) for category, part in by_category.items()}
    if request.json:
        print(jsonlib.dumps(_as_json(whole, categories, request)))
    else:
        _print(whole, categories)


def _reader(request: Request) -> tuple[Checkpoint, Reader]:
    """The model whose answers are walked over, and who proposes."""
    settings = LoadSettings(**asdict(request.place))
    if request.heads is not None or request.draft_model is not None:
        _refuse_without_head(request)
    if request.heads is not None:
        config, module = load_heads(request.heads)
        checkpoint = load_checkpoint(request.model, settings, trainable=True)
        return checkpoint, HeadsReader(checkpoint.network, heads_for(checkpoint, request.heads, config, module))
    if request.draft_model is not None:
        checkpoint = load_checkpoint(request.model, settings, trainable=True)
        draft = load_layers(request.draft_model, checkpoint)
        return checkpoint, ModelReader(draft, MEASURED_DRAFTS)
    folder = adapter_folder(request.model, request.adapter)
    given = None if folder is None else (folder, load_adapter(folder))
    if given is None or not given[1].config.sequential_size:
        _refuse_without_head(request)
    checkpoint, adapter = load_converted(request.model, settings, given, trainable=True)
    network = checkpoint.network
    if adapter is None:
        raise InputError(
            f"{request.model} has no adapter of its own: name one with --adapter, or --heads, or --draft-model"
        )
    if adapter.config.targets:
        student = Student.of(network, adapter)
        return checkpoint, MaskReader(network, student, with_sequential=request.sequential_head)
    masks = adapter.config.masks if given else min(adapter.config.masks, _MOST_MASKS)
    return checkpoint, MaskReader(network, MaskRows(network, adapter, masks))


def _refuse_without_head(request: Request) -> None:
    if not request.sequential_head:
        raise InputError("--no-sequential-head: there is none here, leave it out")


def _as_json(whole: Tally, categories: dict[str, Tally], request: Request) -> dict[str, Any]:
    entry = {
        "model": request.model,
        **{
            name: str(given) if given else None
            for name, given in (
                ("adapter", request.adapter),
                ("heads", request.heads),
                ("draft_model", request.draft_model),
            )
        },
        "prompts": str(request.prompts),
        "max_tokens": request.max_tokens,
        "sequential_head": request.sequential_head,
        **_counts(whole),
    }
    if categories:
        entry["mean_over_categories"] = round(_mean(categories), 4)
        entry["categories"] = {name: _counts(tally) for name, tally in categories.items()}
    entry["context"] = {
        f"<={border}": {"tokens": tokens, "forwards": forwards, "tokens_per_forward": round(tokens / forwards, 4)}
        for border, (tokens, forwards) in sorted(whole.by_context.items())
    }
    return entry


def _counts(tally: Tally) -> dict[str, Any]:
    return {
        "prompts_measured": tally.texts,
        "tokens": tally.tokens,
        "forwards": tally.forwards,
        "tokens_per_forward": round(tally.tokens_per_forward, 4),
        "acceptance_by_depth": [round(rate, 4) for rate in tally.acceptance],
    }


def _mean(categories: dict[str, Tally]) -> float:
    return sum(tally.tokens_per_forward for tally in categories.values()) / len(categories)


def _print(whole: Tally, categories: dict[str, Tally]) -> None:
    width = max(len(name) for name in ("mean over categories", *categories))
    print(f"{'':<{width}}  tokens_per_forward  acceptance by depth")
    for name, tally in {**categories, "all": whole}.items():
        rates = " ".join(f"{rate:.2f}" for rate in tally.acceptance)
        print(f"{name:<{width}}  {tally.tokens_per_forward:>18.3f}  {rates}")
    if categories:
        print(f"{'mean over categories':<{width}}  {_mean(categories):>18.3f}")
    print("\ncontext  tokens_per_forward  tokens")
    for border, (tokens, forwards) in sorted(whole.by_context.items()):
        print(f"<={border:<5}  {tokens / forwards:>18.3f}  {tokens}")
