"""`stridelm acceptance`: how good a conversion is, independent of the machine."""

import json as jsonlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stridelm.cli.options import PROMPTS_HELP, Model, with_settings
from stridelm.models.preview import adapter_folder
from stridelm.params import InputError, SamplingParams
from stridelm.prompts import read_prompts
from stridelm.settings import DEFAULT_MODEL, LoadSettings, ModelChoice
from stridelm.train.settings import MEASURED_DRAFTS, PlaceSettings

if TYPE_CHECKING:
    from stridelm.backends.torch.checkpoint import Checkpoint
    from stridelm.train.acceptance import Summary, Tally
    from stridelm.train.students.readers import Reader

_LARGEST_BATCH = 4096
_LARGEST_TREE = 64
_SEEDS = 2**31
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
    tree: int | None
    temperature: float
    seed: int | None
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
    tree: Annotated[
        int | None,
        typer.Option("--tree", help="Draft trees of this number of rows, the newest token included; default: chains."),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Answers and drafts are drawn at this; 0 is greedy.")
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="With --temperature: what the answers are drawn with; default: 0.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    place: PlaceSettings = PlaceSettings(),  # noqa: B008 (frozen)
) -> None:
    """Measure a conversion: tokens per forward and acceptance by depth, whatever the machine.

    \b
    stridelm acceptance --model smollm2 --prompts questions.jsonl
    """
    load = LoadSettings(**asdict(place))
    choice = ModelChoice(model, adapter, draft_model, heads, load)
    run(AcceptanceOptions(choice, prompts, max_tokens, batch, sequential_head, tree, temperature, seed, json))


def run(options: AcceptanceOptions) -> None:
    _check(options)
    from stridelm.train.acceptance import Measure, Summary
    from stridelm.train.answers import answered, rollout_prompts
    from stridelm.train.display import Display

    lines = read_prompts(options.prompts)
    checkpoint, reader = _reader(options)
    with Display() as display:
        prompts = rollout_prompts(
            checkpoint, lines, options.max_tokens, temperature=options.temperature, seed=options.seed or 0
        )
        texts = answered(checkpoint, prompts, lines, options.batch, display.report)
        tallies: dict[int, Tally] = {}
        for text, tally in Measure(reader)(texts.values()):
            tallies[id(text)] = tally
            display.report("walking", len(tallies), len(texts))
    summary = Summary.of((text, tallies[id(text)]) for _, text in sorted(texts.items()))
    if options.json:
        print(jsonlib.dumps(_as_json(summary, options)))
    else:
        _print(summary)


def _check(options: AcceptanceOptions) -> None:
    """Refuse what can be told to be wrong before anything is loaded."""
    if not 2 <= options.max_tokens <= 2**20:
        raise InputError(f"--max-tokens must be between 2 and {2**20}, not {options.max_tokens}")
    if not 1 <= options.batch <= _LARGEST_BATCH:
        raise InputError(f"--batch must be between 1 and {_LARGEST_BATCH}, not {options.batch}")
    if options.tree is not None and not 2 <= options.tree <= _LARGEST_TREE:
        raise InputError(f"--tree must be between 2 and {_LARGEST_TREE} rows, not {options.tree}")
    SamplingParams(temperature=options.temperature)
    if options.seed is not None:
        if options.temperature == 0:
            raise InputError("--seed: greedy answers are not drawn; give a --temperature, too, or leave it out")
        if not 0 <= options.seed < _SEEDS:
            raise InputError(f"--seed must be between 0 and {_SEEDS - 1}, not {options.seed}")
    choice = options.choice
    if sum(given is not None for given in (choice.adapter, choice.heads, choice.draft_model)) > 1:
        raise InputError("one measurement is of --adapter, --heads or --draft-model: leave the others out")
    if choice.draft_model is not None:
        if options.tree is not None:
            raise InputError("--tree: a draft model writes chains; leave it out, or measure an adapter or heads")
        if options.temperature:
            raise InputError("--temperature: a draft model is measured on greedy answers only; leave it out")


def _reader(options: AcceptanceOptions) -> "tuple[Checkpoint, Reader]":
    """The model whose answers are measured, and the reader that proposes drafts for them."""
    from stridelm.backends.torch.checkpoint import load_checkpoint
    from stridelm.backends.torch.converted import load_converted
    from stridelm.backends.torch.draft_layers import load_layers
    from stridelm.backends.torch.heads import heads_for, load_heads
    from stridelm.models.adapter import load_adapter
    from stridelm.train.students.readers import HeadsReader, MaskReader, ModelReader
    from stridelm.train.students.student import MaskRows, Student

    choice, forms = options.choice, (options.tree,)
    if choice.heads is not None or choice.draft_model is not None:
        _refuse_without_head(options)
    if choice.heads is not None:
        folder = Path(choice.heads)
        config, module = load_heads(folder)
        checkpoint = load_checkpoint(choice.model, choice.settings, trainable=True)
        heads = heads_for(checkpoint, folder, config, module)
        return checkpoint, HeadsReader(checkpoint.network, heads, forms=forms, ends=checkpoint.eos_ids)
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
    masks = adapter.config.masks if given else min(adapter.config.masks, _MAX_MASKS)
    student = Student.of(network, adapter) if adapter.config.targets else MaskRows(network, adapter, masks)
    return checkpoint, MaskReader(
        network, student, with_sequential=options.sequential_head, forms=forms, ends=checkpoint.eos_ids
    )


def _refuse_without_head(options: AcceptanceOptions) -> None:
    if not options.sequential_head:
        raise InputError("--no-sequential-head: there is none here, leave it out")


def _as_json(summary: "Summary", options: AcceptanceOptions) -> dict[str, Any]:
    choice = options.choice
    return {
        "model": choice.model,
        "adapter": choice.adapter,
        "heads": choice.heads,
        "draft_model": choice.draft_model,
        "prompts": str(options.prompts),
        "max_tokens": options.max_tokens,
        "sequential_head": options.sequential_head,
        "tree": options.tree,
        "temperature": options.temperature,
        "seed": (options.seed or 0) if options.temperature else None,
        **summary.entry,
    }


def _print(summary: "Summary") -> None:
    whole, categories = summary.whole, summary.categories
    width = max(len(name) for name in ("mean over categories", *categories))
    print(f"{'':<{width}}  tokens_per_forward  before_loops  acceptance by depth")
    for name, tally in {**categories, "all": whole}.items():
        rates = " ".join(f"{rate:.2f}" for rate in tally.acceptance)
        before = tally.tokens_per_forward_before_loops
        print(f"{name:<{width}}  {tally.tokens_per_forward:>18.3f}  {before:>12.3f}  {rates}")
    if categories:
        print(f"{'mean over categories':<{width}}  {summary.mean:>18.3f}  {summary.mean_before_loops:>12.3f}")
    tokens, forwards = whole.before_loops
    print(f"\n{whole.loops} of {whole.texts} answers end in a loop; before loops: {tokens} tokens, {forwards} forwards")
    print("\ncontext  tokens_per_forward  tokens")
    for border, (tokens, forwards) in sorted(whole.by_context.items()):
        print(f"<={border:<5}  {tokens / forwards:>18.3f}  {tokens}")
