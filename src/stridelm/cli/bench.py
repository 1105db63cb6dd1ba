"""`stridelm bench`: its options; `bench/benchmark.py` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import PROMPTS_HELP, with_settings
from stridelm.settings import ModelChoice


@with_settings
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
    rounds: Annotated[int | None, typer.Option("--rounds", help="How often each question is asked; default 3.")] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="Ask only the first N questions of each suite; chains of `agent` are never cut."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Maximum number of tokens of each answer.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="BEFORE AFTER", help="Only say what changed between two reports."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="REPORT", help="Only write the files of this bench.json anew, into --out."),
    ] = None,
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
) -> None:
    """What will it do for me? Our decoders, transformers and servers on the same questions, in turn, with a report.

    \b
    stridelm bench --quick
    stridelm bench --prompts mine.jsonl --subject auto --subject transformers --out report
    stridelm bench --url http://127.0.0.1:8000/v1 --suite voice --suite agent
    stridelm bench --compare before/bench.json after/bench.json
    stridelm bench --page older/bench.json --out report
    """
    from stridelm.bench import benchmark

    if compare is not None:
        benchmark.show_comparison(*compare)
    elif page is not None:
        benchmark.write_again(page, out)
    else:
        benchmark.run(
            benchmark.BenchOptions(
                out=out,
                choice=choice,
                suites=tuple(suite or ()),
                prompts=prompts,
                subjects=tuple(subject or ()),
                urls=tuple(url or ()),
                rounds=rounds,
                limit=limit,
                max_tokens=max_tokens,
                quick=quick,
            )
        )
