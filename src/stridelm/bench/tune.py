"""`stridelm tune`: finds the decoder and settings that are best for a user's own prompts on this machine."""

import os
import shlex
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from stridelm.api import LanguageModel
from stridelm.backends.common.processor import processor_name
from stridelm.bench.page.frontier_picture import draw
from stridelm.light import install_command
from stridelm.params import InputError, SamplingParams
from stridelm.profile import FILE, Measured, label, write_profile
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import PLAIN, DecodeSettings, ModelChoice
from stridelm.stats import path_in_words
from stridelm.train.record import circumstances
from stridelm.types import Result

MAX_PROMPTS = 16
PICTURE = "frontier.png"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What the command line asked for."""

    choice: ModelChoice
    prompts: Path
    out: Path
    max_tokens: int
    rounds: int
    agreement: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of a candidate, compared with the plain answer to the same prompt in the same round."""

    speed_up: float
    tokens_per_second: float
    tokens_per_forward: float
    agreement: float
    identical: bool
    exact: bool
    forwards: int
    own_forwards: int
    """Those that the backend ran by itself."""
    backend: str


def run(options: TuneOptions) -> None:
    lines = _checked(options)
    model = LanguageModel.load(options.choice)
    if len(lines) > MAX_PROMPTS:
        print(f"{options.prompts}: the first {MAX_PROMPTS} of {len(lines)} prompts are used", file=sys.stderr)
        lines = lines[:MAX_PROMPTS]
    params = SamplingParams(max_tokens=options.max_tokens)
    _check_prompts(model, lines, params)
    settings = candidates(
        has_draft=model.loaded.has_given_draft,
        mask_k=0 if model.gate is None else model.gate.k,
        heads_k=0 if model.heads is None else model.heads.k,
    )
    measured = measure(model, [line.prompt for line in lines], settings, params, options.rounds)
    chosen = choose(measured, options.agreement)
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{Path(options.choice.model).name}, {options.prompts.name}"
    drawn = draw(options.out / PICTURE, measured, chosen, title)
    file = options.out / FILE
    record = _record(options, model, len(lines))
    write_profile(file, chosen.settings, model.target.fingerprint, measured, record)
    print("\n".join(table(measured, chosen)))
    if not drawn:
        print(f"{PICTURE} was not drawn: matplotlib is not installed ({install_command('train')})")
    choice, default = options.choice, ModelChoice()
    given = {
        name: getattr(choice, name)
        for name in ("model", "adapter", "draft_model", "heads")
        if getattr(choice, name) != getattr(default, name)
    }
    needed = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    print(f'\nuse it: {shlex.join(["stridelm", "generate", *needed, "--profile", str(file)])} "..."')


def _checked(options: TuneOptions) -> list[PromptLine]:
    """Read the prompts, and check all options that can be checked without a model."""
    if not 2 <= options.max_tokens <= 2**20:
        raise InputError(f"--max-tokens must be between 2 and {2**20}, not {options.max_tokens}")
    if not 1 <= options.rounds <= 1000:
        raise InputError(f"--rounds must be between 1 and 1000, not {options.rounds}")
    if not 0 <= options.agreement <= 1:
        raise InputError(f"--agreement must be between 0 (any text) and 1 (the same text), not {options.agreement}")
    place = next(each for each in (options.out, *options.out.absolute().parents) if each.exists())
    if not place.is_dir():
        raise InputError(f"{place}: is a file, so there can be no folder {options.out}: name another one")
    if not os.access(place, os.W_OK):
        raise InputError(f"{place}: may not be written to: name another folder")
    return read_prompts(options.prompts)


def _check_prompts(model: LanguageModel, lines: list[PromptLine], params: SamplingParams) -> None:
    """Check all prompts first: a bad one must not cost the measurements before it."""
    for line in lines:
        try:
            model.stream(line.prompt, params, decoder=PLAIN).close()
        except InputError as error:
            raise InputError(f"{line.place}: {error}") from error


def candidates(*, has_draft: bool, mask_k: int, heads_k: int = 0) -> list[DecodeSettings]:
    """The settings to try with what is loaded, plain decoding first. `mask_k` is 0 without masks, `heads_k` is 0
    without prediction heads."""
    found = [DecodeSettings(PLAIN), DecodeSettings(), *(DecodeSettings(nodes=nodes) for nodes in (4, 8, 16))]
    if mask_k:
        found += [DecodeSettings("self", k=k) for k in sorted({3, 5, mask_k}) if k <= mask_k]
    if heads_k:
        found += [DecodeSettings("heads", k=k) for k in sorted({3, heads_k}) if k <= heads_k]
    found += [DecodeSettings("ngram", k=k) for k in (4, 8)]
    if has_draft:
        found += [DecodeSettings("draft", k=k) for k in (4, 8)]
    found += [DecodeSettings(tolerance=tolerance) for tolerance in (0.1, 0.3, 0.5, 0.7)]
    if mask_k:
        found += [DecodeSettings("adaptive", threshold=threshold) for threshold in (0.95, 0.9, 0.8, 0.6)]
        found += [DecodeSettings("static", k=k) for k in (2, 3) if k <= mask_k]
    return found


def measure(
    model: LanguageModel, prompts: list[Any], settings: list[DecodeSettings], params: SamplingParams, rounds: int
) -> list[Measured]:
    """Run every candidate on every prompt, in turn, so that disturbances of the machine affect all of them alike.

    `settings` begins with plain decoding. A warm-up round comes first and is not counted.
    """
    samples: dict[DecodeSettings, list[Sample]] = defaultdict(list)
    console = Console(stderr=True, highlight=False)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=(1 + rounds) * len(prompts) * len(settings))
        for number in range(1 + rounds):
            what = f"round {number} of {rounds}" if number else "warming up"
            for prompt in prompts:
                plain: Result | None = None
                for each in settings:
                    progress.update(task, description=f"{what}, {label(each)}")
                    model.forget()
                    result = model.generate(prompt, params, decoder=each)
                    plain = plain or result
                    if number:
                        samples[each].append(compare(plain, result))
                    progress.advance(task)
    return [summarize(each, samples[each]) for each in settings]


def compare(plain: Result, result: Result) -> Sample:
    """Compares seconds per token: the answer of a lossy decoder may be longer or shorter than the plain one."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(plain.token_ids, result.token_ids, strict=False))
    )
    return Sample(
        speed_up=result.stats.tokens_per_second / plain.stats.tokens_per_second,
        tokens_per_second=result.stats.tokens_per_second,
        tokens_per_forward=result.stats.tokens_per_forward,
        agreement=same / len(plain.token_ids),
        identical=plain.token_ids == result.token_ids,
        exact=result.exact,
        forwards=result.stats.forwards,
        own_forwards=result.stats.own_forwards,
        backend=result.backend,
    )


def summarize(settings: DecodeSettings, samples: list[Sample]) -> Measured:
    speed_ups = [sample.speed_up for sample in samples]
    # Quartiles need two values; with a single one, all three are equal to it.
    low, middle, high = statistics.quantiles(speed_ups * (1 + (len(samples) == 1)), n=4, method="inclusive")
    return Measured(
        settings=settings,
        speed_up=middle,
        low=low,
        high=high,
        tokens_per_second=statistics.median(sample.tokens_per_second for sample in samples),
        tokens_per_forward=statistics.mean(sample.tokens_per_forward for sample in samples),
        agreement=statistics.fmean(sample.agreement for sample in samples),
        identical=statistics.fmean(sample.identical for sample in samples),
        exact=all(sample.exact for sample in samples),
        path=path_in_words(
            samples[0].backend,
            sum(sample.forwards for sample in samples),
            sum(sample.own_forwards for sample in samples),
            len(samples),
        ),
    )


def choose(measured: list[Measured], agreement: float) -> Measured:
    """The fastest that agrees enough, or plain decoding, which is the first, if none is faster.

    An agreement of 1 allows exact decoders only: a lossy one that kept the text on these prompts may not on others.
    """
    plain, *others = measured
    allowed = [
        each for each in others if each.agreement >= agreement and each.speed_up > 1 and (each.exact or agreement < 1)
    ]
    return max(allowed, key=lambda each: each.speed_up, default=plain)


def table(measured: list[Measured], chosen: Measured) -> list[str]:
    """All candidates, the fastest first, as lines to print."""
    width = max(len(label(each.settings)) for each in measured)
    lines = [f"  {'decoder':<{width}}  speed-up  quartiles    tokens/s  per forward  agreement  identical  exact  path"]
    for each in sorted(measured, key=lambda each: each.speed_up, reverse=True):
        lines.append(
            f"{'*' if each is chosen else ' '} {label(each.settings):<{width}}  {each.speed_up:>7.2f}x  "
            f"{each.low:>4.2f} - {each.high:<4.2f}  {each.tokens_per_second:>8.1f}  {each.tokens_per_forward:>11.2f}  "
            f"{each.agreement:>9.3f}  {each.identical:>9.3f}  {'yes' if each.exact else 'no':<5}  {each.path}"
        )
    return [*lines, f"* chosen: {label(chosen.settings)}"]


def _record(options: TuneOptions, model: LanguageModel, prompts: int) -> dict[str, Any]:
    """What the profile records besides its settings."""
    made = circumstances(model.target.device)
    command, machine = made.pop("command"), made.pop("machine")
    machine |= {"processor": processor_name(), "threads": torch.get_num_threads()}
    return {
        "model": options.choice.model,
        "agreement": options.agreement,
        "prompts": prompts,
        "max_tokens": options.max_tokens,
        "rounds": options.rounds,
        "machine": machine | made | {"date": datetime.now(UTC).isoformat(timespec="seconds")},
        "command": command,
    }
