"""`stridelm generate`: one prompt streamed to the terminal, a file of prompts, or a race."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import stridelm
from stridelm.api import LanguageModel, Prompt
from stridelm.chat.screen import STRIDE_STYLES
from stridelm.cli.race import run_race
from stridelm.models.preview import may_have_heads, may_have_masks, own_draft
from stridelm.params import InputError, SamplingParams
from stridelm.profile import read_profile
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import LARGEST_K, DecodeSettings, LoadSettings
from stridelm.types import Result


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    prompt: str | None
    prompts: Path | None
    model: str
    adapter: str | None
    draft_model: str | None
    heads: str | None
    profile: Path | None
    """Takes the place of `decode`."""
    decode: DecodeSettings
    sampling: SamplingParams
    raw: bool
    race: bool
    json: bool
    batch: int
    explain: bool
    load: LoadSettings


def run(request: Request) -> None:
    if not 1 <= request.batch <= 1024:
        raise InputError(f"--batch must be between 1 and 1024, not {request.batch}")
    if request.prompts is not None and (request.prompt is not None or request.race):
        raise InputError("--prompts takes the place of a prompt and does not go with --race: leave one of them out")
    if request.batch != 1 and request.prompts is None:
        raise InputError("--batch needs several prompts: give them with --prompts")
    if request.explain and request.race:
        raise InputError("--explain is about one decoder and does not go with --race: leave one of them out")
    fingerprint: str | None = None
    if request.profile is not None:
        decode, fingerprint = read_profile(request.profile)
        request = replace(request, decode=decode)
    request.decode.check(
        has_draft=request.draft_model is not None or own_draft(request.model) is not None,
        mask_k=LARGEST_K if may_have_masks(request.model, request.adapter) else 0,
        heads_k=LARGEST_K if may_have_heads(request.model, request.heads) else 0,
    )
    if request.prompts is not None:
        lines = read_prompts(request.prompts)
        _answer_all(_load(request, fingerprint), lines, request)
    else:
        prompt = _one_prompt(request)
        _answer(_load(request, fingerprint), prompt, request)


def _load(request: Request, fingerprint: str | None) -> LanguageModel:
    """`fingerprint`: of the model that the profile was made for."""
    model = stridelm.load(
        request.model,
        adapter=request.adapter,
        draft_model=request.draft_model,
        heads=request.heads,
        settings=request.load,
    )
    if fingerprint not in (None, model.target.fingerprint):
        raise InputError(
            f"{request.profile}: was made for another model than {request.model}: load that one, or make a profile for "
            "this one with `stridelm tune`"
        )
    return model


def _answer(model: LanguageModel, prompt: str, request: Request) -> None:
    if request.race:
        run_race(model, prompt, request.sampling, request.decode, raw=request.raw, as_json=request.json)
    elif request.json:
        _print_json(model, model.generate(prompt, **_arguments(request)), request)
    else:
        _stream(model, prompt, request)
        _explain(model, request)


def _one_prompt(request: Request) -> str:
    if request.prompt is not None:
        return request.prompt
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError('no prompt: give one, as in stridelm generate "Why is the sky blue?", or pipe one in')
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not text in UTF-8 ({error})") from error


def _arguments(request: Request) -> dict[str, Any]:
    return {"params": request.sampling, "decoder": request.decode, "raw": request.raw}


def _stream(model: LanguageModel, prompt: Prompt, request: Request) -> None:
    console = Console(highlight=False)
    answer = model.stream(prompt, **_arguments(request))
    for number, stride in enumerate(answer):
        if console.is_terminal:
            console.out(stride.text, end="", style=STRIDE_STYLES[number % 2])
        else:
            print(stride.text, end="", flush=True)  # as it is: a console would turn tabs into spaces
    print(flush=True)
    Console(stderr=True, highlight=False).out(summary(answer.result()), style="dim")


def _answer_all(model: LanguageModel, lines: list[PromptLine], request: Request) -> None:
    # Look at every prompt first: a bad one in the middle must not cost the answers before it.
    for line in lines:
        try:
            model.stream(line.prompt, **_arguments(request)).close()
        except InputError as error:
            raise InputError(f"{line.place}: {error}") from error
    prompts = [line.prompt for line in lines]
    parts = [prompts[start : start + request.batch] for start in range(0, len(prompts), request.batch)]
    progress = Console(stderr=True)
    for part in track(parts, "Answering", console=progress, disable=not progress.is_terminal, transient=True):
        for prompt, result in zip(part, model.generate(part, **_arguments(request)), strict=True):  # type: ignore[call-overload]
            if request.json:
                _print_json(model, result, request)
            else:
                shown = prompt if isinstance(prompt, str) else prompt[-1]["content"]
                print(f">>> {shown}\n{result.text}\n[{summary(result)}]\n", flush=True)
    if not request.json:
        _explain(model, request)


def _explain(model: LanguageModel, request: Request) -> None:
    if request.explain:
        print("\n".join(model.explain(request.decode)), file=sys.stderr)


def _print_json(model: LanguageModel, result: Result, request: Request) -> None:
    explained = {"explain": model.explain(request.decode)} if request.explain else {}
    print(json.dumps(as_json(result) | explained), flush=True)


def as_json(result: Result) -> dict[str, Any]:
    stats = result.stats
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "tokens": stats.tokens,
        "forwards": stats.forwards,
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "ttft_ms": round(stats.ttft * 1e3, 2),
        "latency_ms": round(stats.latency * 1e3, 2),
        "tokens_per_s": round(stats.tokens_per_second, 2),
        "decoder": result.decoder,
        "backend": result.backend,
        "own_forwards": stats.own_forwards,
        "path": result.path,
        "seed": result.seed,
        "exact": result.exact,
        "exact_to": result.exact_to,
    }


def summary(result: Result) -> str:
    stats = result.stats
    return (
        f"{stats.tokens} tokens in {stats.forwards} forwards ({stats.tokens_per_forward:.2f} per forward), "
        f"{stats.tokens_per_second:.1f} tokens/s, first after {stats.ttft * 1e3:.0f} ms, {result.decoder} "
        f"({result.path}), finished by {result.finish_reason}, seed {result.seed}; "
        f"{'exact' if result.exact else 'not exact'} with respect to {result.exact_to}"
    )
