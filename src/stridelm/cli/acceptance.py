"""`stridelm acceptance`: how good a conversion is, independent of the machine."""

import json as jsonlib
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stridelm.cli.options import PROMPTS_HELP, Model, with_settings
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError
from stridelm.prompts import read_prompts
from stridelm.settings import DEFAULT_MODEL, LoadSettings, ModelChoice
from stridelm.train.settings import MEASURED_DRAFTS, PlaceSettings

if TYPE_CHECKING:
    from stridelm.backends.torch.checkpoint import Checkpoint
    from stridelm.train.acceptance import Reader, Tally

_LARGEST_BATCH = 4096
_MAX_MASKS = 15
"""Number of masks of a model that stands alone and does not say how many it was trained with: that of published
models."""


@dataclass(frozen=True, slots=True)
class AcceptanceOptions:
    """What the command line asked for."""

    choice: ModelChoice
    prompts: Path
    max_tokens: int
    batch: int
    sequential_head: bool
    json: bool


@with_settings
def acceptance(
    prompts: Annotated[
        Path, typer.Option("--prompts", help=f"What to answer: {PROMPTS_HELP} Lines may carry a `category`.")
    ],
    model: Model = DEFAULT_MODEL,
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="The adapter's folder; default: the built-in model's own.")
    ] = None,
    heads: Annotated[str | None, typer.Option("--heads", help="Measure these heads, and no adapter.")] = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="Measure this draft, which train made, and no adapter.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Maximum number of tokens of each answer.")] = 200,
    batch: Annotated[int, typer.Option("--batch", help="Answers written at once.")] = 32,
    sequential_head: Annotated[
        bool, typer.Option("--sequential-head/--no-sequential-head", help="With or without the sequential head.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    place: PlaceSettings = PlaceSettings(),  # noqa: B008 (frozen)
) -> None:
    """Measure a conversion: tokens per forward and acceptance by depth, whatever the machine.

    \b
    stridelm acceptance --model smollm2 --prompts questions.jsonl
    """
    load = LoadSettings(**asdict(place))
    choice = ModelChoice(model, adapter, draft_model, heads, load)
    run(AcceptanceOptions(choice, prompts, max_tokens, batch, sequential_head, json))


def run(options: AcceptanceOptions) -> None:
    if not 2 <= options.max_tokens <= 2**20:
        raise InputError(f"--max-tokens must be between 2 and {2**20}, not {options.max_tokens}")
    if not 1 <= options.batch <= _LARGEST_BATCH:
        raise InputError(f"--batch must be between 1 and {_LARGEST_BATCH}, not {options.batch}")
    choice = options.choice
    if sum(given is not None for given in (choice.adapter, choice.heads, choice.draft_model)) > 1:
        raise InputError("one measurement is of --adapter, --heads or --draft-model: leave the others out")
    from stridelm.train.acceptance import Measure, total
    from stridelm.train.answers import greedy_answers
    from stridelm.train.display import Display

    lines = read_prompts(options.prompts)
    checkpoint, reader = _reader(options)
    with Display() as display:
        texts = greedy_answers(checkpoint, lines, options.max_tokens, options.batch, display.report)
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
    if options.json:
        print(jsonlib.dumps(_as_json(whole, categories, options)))
    else:
        _print(whole, categories)


def _reader(options: AcceptanceOptions) -> "tuple[Checkpoint, Reader]":
    """The model whose answers are measured, and the reader that proposes drafts for them."""
    from stridelm.backends.torch.checkpoint import load_checkpoint
    from stridelm.backends.torch.converted import load_converted
    from stridelm.backends.torch.draft_layers import load_layers
    from stridelm.backends.torch.heads import heads_for, load_heads
    from stridelm.models.adapter import load_adapter
    from stridelm.train.acceptance import HeadsReader, MaskReader, ModelReader
    from stridelm.train.students.student import MaskRows, Student

    choice = options.choice
    if choice.heads is not None or choice.draft_model is not None:
        _refuse_without_head(options)
    if choice.heads is not None:
        folder = Path(choice.heads)
        config, module = load_heads(folder)
        checkpoint = load_checkpoint(choice.model, choice.settings, trainable=True)
        return checkpoint, HeadsReader(checkpoint.network, heads_for(checkpoint, folder, config, module))
    if choice.draft_model is not None:
        checkpoint = load_checkpoint(choice.model, choice.settings, trainable=True)
        draft = load_layers(Path(choice.draft_model), checkpoint)
        return checkpoint, ModelReader(draft, MEASURED_DRAFTS)
    folder = adapter_folder(choice.model, choice.adapter)
    given = None if folder is None else (folder, load_adapter(folder))
    if given is None or not given[1].config.sequential_size:
        _refuse_without_head(options)
    checkpoint, adapter = load_converted(choice.model, choice.settings, given, trainable=True)
    network = checkpoint.network
    if adapter is None:
        raise InputError(
            f"{choice.model} has no adapter of its own: name one with --adapter, or --heads, or --draft-model"
        )
    if adapter.config.targets:
        student = Student.of(network, adapter)
        return checkpoint, MaskReader(network, student, with_sequential=options.sequential_head)
    masks = adapter.config.masks if given else min(adapter.config.masks, _MAX_MASKS)
    return checkpoint, MaskReader(network, MaskRows(network, adapter, masks))


def _refuse_without_head(options: AcceptanceOptions) -> None:
    if not options.sequential_head:
        raise InputError("--no-sequential-head: there is none here, leave it out")


def _as_json(whole: "Tally", categories: "dict[str, Tally]", options: AcceptanceOptions) -> dict[str, Any]:
    choice = options.choice
    entry = {
        "model": choice.model,
        "adapter": choice.adapter,
        "heads": choice.heads,
        "draft_model": choice.draft_model,
        "prompts": str(options.prompts),
        "max_tokens": options.max_tokens,
        "sequential_head": options.sequential_head,
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


def _counts(tally: "Tally") -> dict[str, Any]:
    return {
        "prompts_measured": tally.texts,
        "tokens": tally.tokens,
        "forwards": tally.forwards,
        "tokens_per_forward": round(tally.tokens_per_forward, 4),
        "acceptance_by_depth": [round(rate, 4) for rate in tally.acceptance],
    }


def _mean(categories: "dict[str, Tally]") -> float:
    return sum(tally.tokens_per_forward for tally in categories.values()) / len(categories)


def _print(whole: "Tally", categories: "dict[str, Tally]") -> None:
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
