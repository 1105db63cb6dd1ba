"""`stridelm generate`: one prompt streamed to the terminal, a file of prompts, or races."""

import json as jsonlib
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stridelm.cli.answer_figures import as_json, statistics, summary
from stridelm.cli.options import PROMPTS_HELP, as_option, given, with_settings
from stridelm.models.preview import may_have_heads, may_have_masks, own_draft
from stridelm.params import InputError, SamplingParams
from stridelm.profile import read_profile
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import LARGEST_K, DecodeSettings, ModelChoice

if TYPE_CHECKING:
    from stridelm.api import LanguageModel, Prompt
    from stridelm.types import Result


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What the command line asked for."""

    choice: ModelChoice
    prompt: str | None
    prompts: Path | None
    profile: Path | None
    """If given, it replaces `decode`."""
    decode: DecodeSettings
    sampling: SamplingParams
    raw: bool
    race: bool
    json: bool
    batch: int
    explain: bool
    stats: bool


@with_settings
def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without one, standard input.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help=f"Many prompts: {PROMPTS_HELP}")] = None,
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="Decode as this file says, which `stridelm tune` wrote for the model."),
    ] = None,
    decode: DecodeSettings = DecodeSettings(),  # noqa: B008 (frozen)
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False,
    race: Annotated[
        bool,
        typer.Option(
            "--race",
            help="Race the decoder against one token at a time, live; with --prompts, on each in turn, and a summary.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per answer or race, on one line.")] = False,
    batch: Annotated[int, typer.Option("--batch", help="With --prompts: number of answers at once.")] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say, after the answer, what the decoder's planner decided and why.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Give all figures after the answer, not only two lines.")
    ] = False,
) -> None:
    """Answer a prompt, or a file of prompts.

    \b
    stridelm generate "Why is the sky blue?"
    stridelm generate --race "Count to fifty."
    stridelm generate --race --prompts questions.jsonl
    stridelm generate --prompts questions.jsonl --json --batch 8
    """
    if profile is not None:
        _refuse_decoding_options(context)
    run(GenerateOptions(choice, prompt, prompts, profile, decode, sampling, raw, race, json, batch, explain, stats))


def _refuse_decoding_options(context: typer.Context) -> None:
    """Refuses them even if they are given with their default value: --profile would silently override them."""
    for name in given(context, [each.name for each in fields(DecodeSettings)]):
        raise InputError(f"--profile says how to decode and does not go with {as_option(name)}: leave one of them out")


def run(options: GenerateOptions) -> None:
    if not 1 <= options.batch <= 1024:
        raise InputError(f"--batch must be between 1 and 1024, not {options.batch}")
    if options.prompts is not None and options.prompt is not None:
        raise InputError("--prompts takes the place of a prompt: leave one of them out")
    if options.batch != 1 and options.prompts is None:
        raise InputError("--batch needs several prompts: give them with --prompts")
    if options.batch != 1 and options.race:
        raise InputError("--race runs one prompt at a time and does not go with --batch: leave one of them out")
    if options.explain and options.race:
        raise InputError("--explain is about one decoder and does not go with --race: leave one of them out")
    for other in (name for name in ("race", "json") if options.stats and getattr(options, name)):
        raise InputError(
            f"--{other} gives all its figures by itself and does not go with --stats: leave one of them out"
        )
    fingerprint: str | None = None
    if options.profile is not None:
        decode, fingerprint = read_profile(options.profile)
        options = replace(options, decode=decode)
    choice = options.choice
    options.decode.check(
        has_draft=choice.draft_model is not None or own_draft(choice.model) is not None,
        mask_k=LARGEST_K if may_have_masks(choice.model, choice.adapter) else 0,
        heads_k=LARGEST_K if may_have_heads(choice.model, choice.heads) else 0,
    )
    if options.prompts is not None:
        lines = read_prompts(options.prompts)
        model = _load(options, fingerprint)
        _check_prompts(model, lines, options)
        if options.race:
            _race(model, lines, options)
        else:
            _answer_all(model, lines, options)
    else:
        prompt = _one_prompt(options)
        _answer(_load(options, fingerprint), prompt, options)


def _load(options: GenerateOptions, fingerprint: str | None) -> "LanguageModel":
    """`fingerprint`: that of the model which the profile was made for."""
    from stridelm.api import LanguageModel

    model = LanguageModel.load(options.choice)
    if fingerprint not in (None, model.target.fingerprint):
        raise InputError(
            f"{options.profile}: was made for another model than {options.choice.model}: load that one, or make a "
            "profile for this one with `stridelm tune`"
        )
    model.prepare(options.decode)
    return model


def _answer(model: "LanguageModel", prompt: str, options: GenerateOptions) -> None:
    if options.race:
        _race(model, [PromptLine("the prompt", prompt)], options)
    elif options.json:
        _print_json(model, model.generate(prompt, **_arguments(options)), options)
    else:
        _stream(model, prompt, options)
        _explain(model, options)


def _race(model: "LanguageModel", lines: list[PromptLine], options: GenerateOptions) -> None:
    from stridelm.cli.race import run_races

    run_races(model, lines, options.sampling, options.decode, raw=options.raw, as_json=options.json)


def _one_prompt(options: GenerateOptions) -> str:
    if options.prompt is not None:
        return options.prompt
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError('no prompt: give one, as in stridelm generate "Why is the sky blue?", or pipe one in')
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not text in UTF-8 ({error})") from error


def _arguments(options: GenerateOptions) -> dict[str, Any]:
    return {"params": options.sampling, "decoder": options.decode, "raw": options.raw}


def _stream(model: "LanguageModel", prompt: "Prompt", options: GenerateOptions) -> None:
    from rich.console import Console

    from stridelm.chat.screen import STRIDE_STYLES

    console = Console(highlight=False)
    answer = model.stream(prompt, **_arguments(options))
    for number, stride in enumerate(answer):
        if console.is_terminal:
            console.out(stride.text, end="", style=STRIDE_STYLES[number % 2])
        else:
            print(stride.text, end="", flush=True)  # as it is: a console would turn tabs into spaces
    print(flush=True)
    Console(stderr=True, highlight=False).out("\n".join(_figures(answer.result(), options)), style="dim")


def _figures(result: "Result", options: GenerateOptions) -> list[str]:
    return summary(result, options.sampling) + (statistics(result) if options.stats else [])


def _check_prompts(model: "LanguageModel", lines: list[PromptLine], options: GenerateOptions) -> None:
    """Checks every prompt first: a bad one in the middle must not cost the answers before it."""
    for line in lines:
        try:
            model.stream(line.prompt, **_arguments(options)).close()
        except InputError as error:
            raise InputError(f"{line.place}: {error}") from error


def _answer_all(model: "LanguageModel", lines: list[PromptLine], options: GenerateOptions) -> None:
    from rich.console import Console
    from rich.progress import track

    prompts = [line.prompt for line in lines]
    parts = [prompts[start : start + options.batch] for start in range(0, len(prompts), options.batch)]
    progress = Console(stderr=True)
    for part in track(parts, "Answering", console=progress, disable=not progress.is_terminal, transient=True):
        for prompt, result in zip(part, model.generate(part, **_arguments(options)), strict=True):  # type: ignore[call-overload]
            if options.json:
                _print_json(model, result, options)
            else:
                shown = prompt if isinstance(prompt, str) else prompt[-1]["content"]
                figures = "\n".join(f"[{line}]" for line in _figures(result, options))
                print(f">>> {shown}\n{result.text}\n{figures}\n", flush=True)
    if not options.json:
        _explain(model, options)


def _explain(model: "LanguageModel", options: GenerateOptions) -> None:
    if options.explain:
        print("\n".join(model.explain(options.decode)), file=sys.stderr)


def _print_json(model: "LanguageModel", result: "Result", options: GenerateOptions) -> None:
    explained = {"explain": model.explain(options.decode)} if options.explain else {}
    print(jsonlib.dumps(as_json(result) | explained), flush=True)
