"""The command line of `stridelm bench`."""

from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import PROMPTS_HELP, Adapter, HeadsFolder, Model
from stridelm.settings import DEFAULT_MODEL, LoadSettings


def bench(
    out: Annotated[
        Path, typer.Option("--out", help="The folder for bench.json, index.html and the plots as PNG.")
    ] = Path("bench-report"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Two questions a suite, short answers, one round: some minutes.")
    ] = False,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            help="gemma, structured, maths, open, voice, agent, long; default: all. May be given several times.",
        ),
    ] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help=f"Your own, as a suite: {PROMPTS_HELP}")] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            help="A decoder's name, transformers, transformers-draft or transformers-look-up; one token at a time "
            "always takes part. May be given several times.",
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            help="A running OpenAI-compatible server (vLLM, llama.cpp, our own) that takes part, as in "
            "http://127.0.0.1:8000/v1. May be given several times.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Each question so often; default 3.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="The first so many questions of each suite.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="The most tokens of each answer.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="BEFORE AFTER", help="Only say what changed between two reports."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="A second model that may propose.")] = None,
    heads: HeadsFolder = None,
    load: LoadSettings = LoadSettings(),  # noqa: B008 (frozen)
) -> None:
    """What will it do for me? Our decoders, transformers and servers on the same questions, in turn, with a report.

    \b
    stridelm bench --quick
    stridelm bench --prompts mine.jsonl --subject auto --subject transformers --out report
    stridelm bench --url http://127.0.0.1:8000/v1 --suite voice --suite agent
    stridelm bench --compare before/bench.json after/bench.json
    """
    from stridelm.cli import bench as bench_command

    if compare is not None:
        bench_command.show_comparison(*compare)
    else:
        bench_command.run(
            bench_command.Request(
                out=out,
                model=model,
                adapter=adapter,
                draft_model=draft_model,
                heads=heads,
                suites=tuple(suite or ()),
                prompts=prompts,
                subjects=tuple(subject or ()),
                urls=tuple(url or ()),
                rounds=rounds,
                limit=limit,
                max_tokens=max_tokens,
                quick=quick,
                load=load,
            )
        )
