"""The page of a bench: one self-contained HTML file without scripts, and PNGs of its plots in the same folder. It shows
the figures in `bench.json`, and the texts that differ or loop.

write_page(report, figures, folder) -> the files it wrote
"""

from collections.abc import Iterator
from pathlib import Path

from stridelm.bench.charts import Table
from stridelm.bench.page.parts import STYLE, element, joined, said, table, text_table
from stridelm.bench.page.plot_style import MISSING, as_png, as_svg
from stridelm.bench.page.plots import NAMES, Picture, pictures
from stridelm.bench.page.questions import questions
from stridelm.bench.page_figures import PageFigures, Row
from stridelm.bench.records import Report
from stridelm.bench.wording import COLUMNS, Column, text_verdict
from stridelm.files import write_bytes
from stridelm.params import InputError

FILE = "index.html"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser may fetch and run nothing for the page: the texts in it were written by models."""


def write_page(report: Report, figures: PageFigures, folder: Path) -> list[Path]:
    """Everything is drawn before the first file is written, and each file is written completely or not at all.

    Without matplotlib the page has no plots and says so; older PNGs are removed.
    """
    try:
        drawn = pictures(report, figures.charts)
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


def page(report: Report, figures: PageFigures, drawn: list[Picture] | None) -> str:
    """The whole HTML. `drawn` is None without matplotlib."""
    title = "stridelm bench"
    if model := report.circumstances.get("model"):
        title += f": {model}"
    sections = (
        ("run", "What was run", _facts(figures)),
        ("figures", "What came of it", _main_table(report, figures)),
        ("plots", "Plots", _plots(drawn)),
        ("scenarios", "An agent and a voice", _scenarios(figures)),
        ("questions", "Every question", questions(report, figures.questions)),
        ("absent", "Who took no part", _absent(report)),
        ("repeat", "To repeat it", _repeat(report)),
    )
    sections = tuple(section for section in sections if section[2])
    links = " ".join(element("a", said(name), href=f"#{anchor}") for anchor, name, _ in sections)
    body = joined(
        [
            element("h1", said(title)),
            element("p", said(figures.summary)),
            element("p", said(figures.broken_promises), class_="box", role="note") if figures.broken_promises else "",
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


def _facts(figures: PageFigures) -> str:
    return element("div", joined([text_table(each, class_="lines") for each in figures.facts]), class_="beside")


def _main_table(report: Report, figures: PageFigures) -> str:
    titles = [column.heading for column in COLUMNS]
    suites = dict.fromkeys(row.suite for row in figures.rows)
    bodies = [element("tbody", "".join(_suite_rows(figures, suite))) for suite in suites]
    caption = f"By suite and subject; speed-ups are over {report.baseline}"
    legend = text_table(figures.columns, class_="lines")
    return joined(
        [
            table(caption, ("subject", *titles), bodies, class_="wide"),
            element("details", element("summary", "What the columns say") + legend),
        ]
    )


def _suite_rows(figures: PageFigures, suite: str) -> Iterator[str]:
    yield element("tr", element("th", said(suite), scope="rowgroup", colspan=str(1 + len(COLUMNS))))
    for row in figures.rows:
        if row.suite == suite:
            cells = "".join(_cell(column, cell, row) for column, cell in zip(COLUMNS, row.cells, strict=True))
            yield element("tr", element("th", said(row.subject), scope="row") + cells)


def _cell(column: Column, cell: str, row: Row) -> str:
    if column.title == "path":
        return element("td", said(cell), class_="words")
    if column.cell is not text_verdict:
        return element("td", said(cell))
    return element("td", said(cell), class_=f"words verdict {row.tone}")


def _scenarios(figures: PageFigures) -> str:
    return joined([text_table(each) for each in figures.scenarios])


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
    return text_table(
        Table("Subjects that took no part", ("subject", "why"), tuple(report.absent.items())), class_="lines"
    )


def _repeat(report: Report) -> str:
    command = report.circumstances.get("command")
    if not command:
        return element("p", "The report does not say by which command it was made.")
    return element("pre", element("code", said(command)))
