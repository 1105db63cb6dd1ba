"""The page of a bench: one HTML file that needs nothing else, not even scripts, and PNGs of its plots beside it.

write_page(report, figures, folder) -> the files it wrote
"""

from collections.abc import Iterator
from pathlib import Path

from stridelm.bench.figures import Figures
from stridelm.bench.page.parts import STYLE, element, joined, said, table, two_columns
from stridelm.bench.page.plot_style import MISSING, as_png, as_svg
from stridelm.bench.page.plots import NAMES, Picture, pictures
from stridelm.bench.page.questions import questions
from stridelm.bench.page.scenarios import scenarios
from stridelm.bench.records import Report
from stridelm.bench.wording import COLUMNS, Column, flat, is_alarming, suites_of, text_verdict
from stridelm.files import write_bytes
from stridelm.params import InputError

FILE = "index.html"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the browser may fetch or run for the page: nothing. The texts in it were written by models."""


def write_page(report: Report, figures: list[Figures], folder: Path) -> list[Path]:
    """Everything is drawn before the first file is written, and every file is whole or not there.

    Without matplotlib the page has no plots and says so; older PNGs do not stay beside it.
    """
    try:
        drawn = pictures(report, figures)
    except InputError:
        drawn = None
    images = {} if drawn is None else {f"{each.name}.png": as_png(each.figure) for each in drawn}
    content = page(report, figures, drawn).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if f"{name}.png" not in images:
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in images.items():
        write_bytes(folder / name, image)
    write_bytes(folder / FILE, content)
    return [folder / name for name in (FILE, *images)]


def page(report: Report, figures: list[Figures], drawn: list[Picture] | None) -> str:
    """The whole HTML. `drawn` is None where there is no matplotlib."""
    title = "stridelm bench"
    if model := report.circumstances.get("model"):
        title += f": {model}"
    sections = (
        ("run", "What was run", _run(report)),
        ("figures", "What came of it", _main_table(report, figures)),
        ("plots", "Plots", _plots(drawn)),
        ("scenarios", "An agent and a voice", scenarios(report)),
        ("questions", "Every question", questions(report)),
        ("absent", "Who took no part", _absent(report)),
        ("repeat", "To repeat it", _repeat(report)),
    )
    sections = tuple(section for section in sections if section[2])
    links = " ".join(element("a", said(name), href=f"#{anchor}") for anchor, name, _ in sections)
    body = joined(
        [
            element("h1", said(title)),
            element("p", said(_summary(report, figures))),
            _broken_promises(report, figures),
            element("nav", links, aria_label="Sections"),
            *(
                element("section", f"{element('h2', said(name))}\n{content}", id=anchor)
                for anchor, name, content in sections
            ),
        ]
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{said(_POLICY)}">
<title>{said(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _summary(report: Report, figures: list[Figures]) -> str:
    asked = {(record.suite, record.question) for record in report.records}
    rounds = {record.round for record in report.records}
    return (
        f"{len(report.subjects)} subjects, {len(suites_of(figures))} suites, {len(asked)} questions, "
        f"{len(rounds)} rounds, {len(report.records)} answers. Speed-ups are over {report.baseline}."
    )


def _broken_promises(report: Report, figures: list[Figures]) -> str:
    """An exact decoder whose text differs is a fault, not a trade."""
    broken = [
        f"{each.subject} on {each.suite} ({text_verdict(each)})"
        for each in figures
        if each.differs and each.identical is not None and report.subjects.get(each.subject, {}).get("exact")
    ]
    if not broken:
        return ""
    return element("p", said("Promised the text of plain decoding, and did not keep it: " + "; ".join(broken) + "."),
                   class_="box", role="note")  # fmt: skip


def _run(report: Report) -> str:
    circumstances = {name: value for name, value in report.circumstances.items() if name != "command"}
    subjects = {
        name: "; ".join(f"{key} {value}" for key, value in flat(what).items()) for name, what in report.subjects.items()
    }
    tables = joined(
        [
            two_columns("Machine, versions and time", ("what", "value"), flat(circumstances)),
            two_columns("Settings of the run", ("setting", "value"), flat(report.settings)),
            two_columns("Subjects", ("subject", "what it is"), subjects),
        ]
    )
    return element("div", tables, class_="beside")


def _main_table(report: Report, figures: list[Figures]) -> str:
    titles = [column.heading for column in COLUMNS]
    bodies = [element("tbody", "".join(_suite_rows(figures, suite))) for suite in suites_of(figures)]
    caption = f"By suite and subject; speed-ups are over {report.baseline}"
    meanings = {column.heading.replace("\n", ""): column.meaning for column in COLUMNS}
    legend = two_columns("The columns", ("column", "what it says"), meanings)
    return joined(
        [
            table(caption, ("subject", *titles), bodies, class_="wide"),
            element("details", element("summary", "What the columns say") + legend),
        ]
    )


def _suite_rows(figures: list[Figures], suite: str) -> Iterator[str]:
    yield element("tr", element("th", said(suite), scope="rowgroup", colspan=str(1 + len(COLUMNS))))
    for each in figures:
        if each.suite == suite:
            cells = "".join(_cell(column, each) for column in COLUMNS)
            yield element("tr", element("th", said(each.subject), scope="row") + cells)


def _cell(column: Column, figures: Figures) -> str:
    if column.title == "path":
        return element("td", said(column.cell(figures)), class_="words")
    if column.cell is not text_verdict:
        return element("td", said(column.cell(figures)))
    tone = "alarm" if is_alarming(figures) else "good" if figures.identical is not None else "faint"
    return element("td", said(column.cell(figures)), class_=f"words verdict {tone}")


def _plots(drawn: list[Picture] | None) -> str:
    if drawn is None:
        return element("p", said(f"None: {MISSING}."))
    if not drawn:
        return element("p", "None: there is nothing to draw.")
    return joined([_plot(each) for each in drawn])


def _plot(picture: Picture) -> str:
    drawing = element("div", as_svg(picture.figure, picture.name, picture.title), class_="scroll", tabindex="0",
                      role="region", aria_label=picture.title)  # fmt: skip
    return joined(
        [
            element("h3", said(picture.title)),
            element("figure", drawing + element("figcaption", said(picture.reading))),
        ]
    )


def _absent(report: Report) -> str:
    if not report.absent:
        return element("p", "Everybody who was asked took part.")
    return two_columns("Subjects that took no part", ("subject", "why"), report.absent)


def _repeat(report: Report) -> str:
    command = report.circumstances.get("command")
    if not command:
        return element("p", "The report does not say by which command it was made.")
    return element("pre", element("code", said(command)))
