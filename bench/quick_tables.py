"""The table of a `stridelm bench` report in docs/performance.md."""

from bench.measured import RESULTS
from stridelm.bench.measures import measure
from stridelm.bench.records import Report, read_report
from stridelm.bench.wording import suites_of, text_verdict


def quick() -> str:
    return quick_table(read_report(RESULTS / "bench-quick.json"))


def quick_table(report: Report) -> str:
    """Speed-ups by suite. Text that differs from plain decoding's, and loops, are said in the same cell."""
    figures = {(each.suite, each.subject): each for each in measure(report)}
    subjects = [name for name in report.subjects if name != report.baseline]
    lines = [
        f"| suite | one token at a time | {' | '.join(f'`{name}`' for name in subjects)} |",
        "|---|---|" + "---|" * len(subjects),
    ]
    for suite in suites_of(list(figures.values())):
        cells: list[str] = []
        for subject in subjects:
            each = figures.get((suite, subject))
            if each is None or each.speed_up is None:
                cells.append("")
                continue
            verdict = text_verdict(each)
            cells.append(f"{each.speed_up.median:.2f}x" + ("" if verdict == "same" else f" ({verdict})"))
        lines.append(f"| {suite} | {figures[suite, report.baseline].speed.median:.0f} tokens/s | {' | '.join(cells)} |")
    settings, made = report.settings, report.circumstances
    lines.append(
        f"\nWhole answers, reading the prompt included: at most {settings['max_tokens']} tokens, "
        f"{settings['rounds']} round, {settings['questions_per_suite']} questions per suite; texts are identical to "
        f"one token at a time unless stated. {made['machine']['processor']}, {made['machine']['cores']} "
        f"cores, {made['date'][:10]}, {made['commit']}."
    )
    return "\n".join(lines)
