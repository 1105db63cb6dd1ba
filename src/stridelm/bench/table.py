"""The table that `stridelm bench` shows in the terminal, while it runs and when it is done."""

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stridelm.bench.figures import Figures
from stridelm.bench.wording import COLUMNS, Column, is_alarming, paths_of, suites_of, text_verdict

_ENDLESS = 10_000


def table(figures: list[Figures]) -> RenderableType:
    """A row per suite and subject, as many columns as the terminal has room for."""
    return _Fitting(figures)


class _Fitting:
    """Chooses its columns when it is drawn: a window may be resized while the bench runs."""

    def __init__(self, figures: list[Figures]) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.figures:
            yield Text("nothing measured yet", style="dim")
            return
        columns = list(COLUMNS)
        shown = _table(self.figures, columns)
        while Measurement.get(console, options.update(max_width=_ENDLESS), shown).maximum > options.max_width:
            last = max(columns, key=lambda column: column.rank)
            if last.rank == 0:
                break
            columns.remove(last)
            shown = _table(self.figures, columns)
        yield shown
        names_paths = any(column.title == "path" for column in columns)
        yield from (Text(line, style="dim") for line in _notes(self.figures, names_paths))


def _table(figures: list[Figures], columns: list[Column]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("subject", max_width=22, vertical="top")
    for column in columns:
        if column.cell is text_verdict:
            shown.add_column(column.title, max_width=len("differs at token 100"), vertical="top")
        else:
            shown.add_column(column.title, justify="right", no_wrap=True, vertical="top")
    for suite in suites_of(figures):
        shown.add_row(Text(suite, style="bold underline"))
        for each in figures:
            if each.suite == suite:
                shown.add_row(Text(each.subject), *(_cell(column, each) for column in columns))
    return shown


def _cell(column: Column, figures: Figures) -> Text:
    """A `Text`, not markup: names may contain brackets."""
    style = ""
    if column.cell is text_verdict:
        style = "bold yellow" if is_alarming(figures) else "green"
    return Text(column.cell(figures), style=style)


def _notes(figures: list[Figures], names_paths: bool) -> list[str]:
    """The notes below the table. `names_paths`: whether the table has a column for paths."""
    notes = ["speed-up: over the baseline, on the same question in the same round; median (95 % interval)"]
    if any(each.differs for each in figures):
        notes.append("differs: another text than plain decoding's, so its speed-up is not that of the same answer")
    if any(each.loops for each in figures):
        notes.append("loop: the answer says one thing again and again, which flatters every speculative decoder")
    if not names_paths:
        notes += [f"{subject} ran by {'; '.join(paths)}" for subject, paths in paths_of(figures).items()]
    return notes
