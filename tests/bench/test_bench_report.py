"""What `stridelm bench` shows: the table, the plots, the page and the comparison. All reports are made up."""

import io
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from rich.console import Console, RenderableType

from bench.measured import RESULTS, read
from bench_reports import EXACT, HOSTILE, LOOPING, LOSSY, PLAIN, SERVER, made_report
from stridelm.bench.charts import Chart, charts
from stridelm.bench.compare import WITHIN, changes, compare, warnings
from stridelm.bench.figures import Figures, Spread
from stridelm.bench.measures import measure
from stridelm.bench.page.page import FILE, page, write_page
from stridelm.bench.page.parts import parted, said
from stridelm.bench.page.plot_style import as_svg, looks
from stridelm.bench.page.plots import NAMES, draw, pictures
from stridelm.bench.page_figures import PageFigures, page_figures
from stridelm.bench.records import Report, read_report
from stridelm.bench.report import write_json
from stridelm.bench.table import table
from stridelm.bench.wording import COLUMNS, text_verdict
from stridelm.light import install_command
from stridelm.params import InputError

VOID = {"meta", "wbr", "br", "hr", "img", "link", "input"}


class Parsed(HTMLParser):
    """Balanced tags, cells by row, ids, and every attribute that could fetch something."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.rows: list[list[str]] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.marks: list[str] = []
        self.headless = 0
        self.feed(content)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.headless += tag == "th" and "scope" not in given
        for name, value in given.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "mark":
            self.marks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if "mark" in self.open:
            self.marks[-1] += data


@pytest.fixture(scope="module")
def report() -> Report:
    return made_report()


@pytest.fixture(scope="module")
def figures(report: Report) -> list[Figures]:
    return measure(report)


@pytest.fixture(scope="module")
def shown_figures(report: Report) -> PageFigures:
    return page_figures(report)


@pytest.fixture(scope="module")
def folder(report: Report, shown_figures: PageFigures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    place = tmp_path_factory.mktemp("page")
    write_page(report, shown_figures, place)
    return place


@pytest.fixture(scope="module")
def parsed(folder: Path) -> Parsed:
    return Parsed((folder / FILE).read_text(encoding="utf-8"))


def shown(content: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(content)
    return capture.get().splitlines()


# -- the table


@pytest.mark.parametrize("width", [100, 160])
def test_table_fits_and_is_whole(figures: list[Figures], width: int) -> None:
    lines = shown(table(figures), width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert "speed-up" in lines[1] and "right" in lines[1]


def test_a_wider_terminal_shows_more(figures: list[Figures]) -> None:
    narrow, wide = (" ".join(shown(table(figures), width)[:2]) for width in (100, 160))
    assert "p99" in wide and "p99" not in narrow
    assert "answers" in shown(table(figures), 220)[1]


@pytest.mark.parametrize("width", [100, 160])
def test_table_says_beside_the_speed_up_that_the_text_differs(figures: list[Figures], width: int) -> None:
    lossy = next(each for each in figures if each.subject == LOSSY)
    looping = next(each for each in figures if each.subject == LOOPING)
    lines = shown(table([lossy, looping]), width)
    assert lossy.departs_at is not None
    row = next(line for line in lines if line.startswith(LOSSY))
    assert re.search(rf"\d\.\d\dx \([^)]*\) +differs at token {lossy.departs_at:.0f}", row)
    assert f"{looping.loops} of {looping.answers} loop" in "\n".join(lines)


def test_table_before_anything_is_measured() -> None:
    assert shown(table([]), 80) == ["nothing measured yet"]


def test_names_are_no_markup(figures: list[Figures]) -> None:
    assert any("[red]x[/red]" in line for line in shown(table([replace(figures[0], subject="[red]x[/red]")]), 100))


def test_verdicts(figures: list[Figures]) -> None:
    each = replace(figures[0], identical=None, differs=True, loops=0)
    assert text_verdict(each) == "not compared", "what was never compared counts as different, but is not called so"
    assert text_verdict(replace(each, identical=1.0, differs=False)) == "same"
    assert text_verdict(replace(each, identical=0.0, differs=True)) == "differs"
    assert text_verdict(replace(each, identical=0.5, differs=True, departs_at=7.0)) == "differs at token 7 (50% same)"
    assert text_verdict(replace(each, identical=1.0, differs=False, loops=1, answers=3)) == "same, 1 of 3 loop"


# -- the plots


def test_every_picture_is_drawn_and_none_is_blank(folder: Path) -> None:
    from matplotlib import image

    for name in NAMES:
        pixels = image.imread(folder / f"{name}.png")
        assert pixels.shape[0] > 200 and pixels.shape[1] > 600, name
        shares = Counter(map(tuple, pixels.reshape(-1, pixels.shape[2]).round(2)[::7]))
        assert shares.most_common(1)[0][1] < 0.995 * shares.total(), name


def chart(figures: PageFigures, name: str) -> Chart:
    return next(each for each in figures.charts if each.name == name)


def test_bars_whose_text_differs_are_hatched(
    report: Report, figures: list[Figures], shown_figures: PageFigures
) -> None:
    pytest.importorskip("matplotlib")
    figure = draw(chart(shown_figures, "speed-up"), looks(report))
    hatches = Counter(patch.get_hatch() or "none" for axes in figure.axes for patch in axes.patches)
    drawn = [each for each in figures if each.subject != PLAIN]
    assert hatches["///"] == sum(each.differs and each.identical is not None for each in drawn) > 0
    assert hatches[".."] == sum(each.identical is None for each in drawn) > 0
    assert hatches["none"] == sum(each.identical == 1 for each in drawn) > 0
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sum("loops" in each for each in said) == sum(each.loops > 0 for each in drawn) > 0


def test_phases_are_milliseconds_a_token(report: Report, shown_figures: PageFigures) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(chart(shown_figures, "phases"), looks(report)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [PLAIN, EXACT, LOSSY, LOOPING]
    own = [record.answer for record in report.records if record.subject == PLAIN]
    expected = 1e3 * sum(sum(answer.phases.values()) for answer in own) / sum(answer.count for answer in own)
    first = [patch for patch in axes.patches if abs(patch.get_window_extent().height) and _row(patch) == 0]
    assert sum(patch.get_width() for patch in first) == pytest.approx(expected)  # type: ignore[attr-defined]


def _row(patch: object) -> int:
    return round(patch.get_y() + patch.get_height() / 2)  # type: ignore[attr-defined]


def test_latencies_are_shares_of_all_answers(report: Report, shown_figures: PageFigures) -> None:
    waits, firsts, wholes = chart(shown_figures, "latency").panels
    own = [record.answer for record in report.records if record.subject == SERVER]
    series = next(each for each in wholes.series if each.subject == SERVER)
    assert series.x[1:] == pytest.approx(sorted(answer.seconds for answer in own), rel=1e-3)
    assert series.y == pytest.approx([count / len(own) for count in range(len(own) + 1)], abs=1e-4)
    many = next(each for each in waits.series if each.subject == SERVER)
    assert len(many.x) == 102, "a long run's waits are thinned out"
    gaps = sorted(after - before for answer in own for before, after in pairwise(answer.stride_seconds))
    assert (many.x[0], many.x[-1]) == pytest.approx((1e3 * gaps[0], 1e3 * gaps[-1]), rel=1e-3)
    assert [each.subject for each in firsts.series] == list(report.subjects)


def test_contexts_are_grouped_by_length(report: Report, shown_figures: PageFigures) -> None:
    pace, accepted = chart(shown_figures, "context").panels
    assert [each.subject for each in pace.series] == [PLAIN, EXACT, LOSSY, LOOPING], "a server tells no forwards"
    assert [each.subject for each in accepted.series] == [EXACT, LOSSY, LOOPING], "plain decoding drafts nothing"
    assert all(each.x == (256, 512, 1024, 2048) for each in (*pace.series, *accepted.series))
    own = [each.answer for each in report.records if (each.question, each.subject) == ("long-1", EXACT)]
    expected = sum(answer.count for answer in own) / sum(answer.forwards or 0 for answer in own)
    assert next(each for each in pace.series if each.subject == EXACT).y[0] == pytest.approx(expected)


def test_only_what_is_there_is_drawn(report: Report) -> None:
    pytest.importorskip("matplotlib")
    part = replace(report, records=[record for record in report.records if record.suite != "long"], extra={})
    names = {picture.name for picture in pictures(part, charts(part, measure(part)))}
    assert names == set(NAMES) - {"context", "theory"}
    assert pictures(replace(report, records=[], extra={}), []) == []


def test_names_that_matplotlib_would_read_as_formulas(report: Report) -> None:
    pytest.importorskip("matplotlib")
    hostile = r"$\frac{1$ & <b>"
    renamed = replace(
        report,
        subjects={hostile if name == EXACT else name: what for name, what in report.subjects.items()},
        records=[replace(each, subject=hostile if each.subject == EXACT else each.subject) for each in report.records],
        extra={},
    )
    drawn = {picture.name: picture for picture in pictures(renamed, page_figures(renamed).charts)}
    for name in ("speed-up", "phases"):  # in a legend and at an axis
        assert hostile in "".join(Parsed(as_svg(drawn[name].figure, name, drawn[name].title)).text)


def test_pictures_without_matplotlib(
    report: Report, shown_figures: PageFigures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=re.escape(install_command("bench"))):
        pictures(report, shown_figures.charts)
    (tmp_path / "speed-up.png").write_bytes(b"of an older run")
    assert write_page(report, shown_figures, tmp_path) == [tmp_path / FILE]
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    content = "".join(Parsed((tmp_path / FILE).read_text(encoding="utf-8")).text)
    assert install_command("bench") in content and "differs at token" in content


# -- the page


def test_page_is_whole_and_needs_nothing_else(folder: Path, parsed: Parsed) -> None:
    assert {file.name for file in folder.iterdir()} == {FILE, *(f"{name}.png" for name in NAMES)}
    assert parsed.tags["svg"] == len(NAMES) and parsed.tags["script"] == parsed.tags["img"] == parsed.tags["link"] == 0
    assert parsed.references and all(each.startswith("#") for each in parsed.references)
    assert not {each[1:] for each in parsed.references} - set(parsed.ids), "points to nothing"
    assert [name for name, count in Counter(parsed.ids).items() if count > 1] == []
    assert "@import" not in (folder / FILE).read_text(encoding="utf-8")
    assert parsed.tags["caption"] == parsed.tags["table"] > 5 and parsed.headless == 0


def test_page_escapes_what_models_wrote(folder: Path, parsed: Parsed) -> None:
    content = (folder / FILE).read_text(encoding="utf-8")
    assert "<script" not in content.lower() and "<img" not in content.lower()
    assert HOSTILE in "".join(parsed.text)
    assert said("a\x00b\ud800<c>") == "a\ufffdb\ufffd&lt;c&gt;"


def test_page_marks_differing_text_in_the_row_of_its_speed_up(figures: list[Figures], parsed: Parsed) -> None:
    heads = next(row for row in parsed.rows if row[0] == "subject" and "speed-up" in row)
    rows = [dict(zip(heads, row, strict=True)) for row in parsed.rows if len(row) == len(heads) and row is not heads]
    assert len(rows) == len(figures) and len(heads) == 1 + len(COLUMNS)
    for row, each in zip(rows, figures, strict=True):
        assert row["subject"] == each.subject
        assert ("differs at token" in row["text"]) == (each.differs and each.identical is not None)
        assert ("loop" in row["text"]) == (each.loops > 0)
        assert row["speed-up"].endswith(")") or each.subject == PLAIN
    assert {row["text"] for row in rows if row["subject"] == SERVER} == {"not compared"}


def test_page_tells_the_run(report: Report, parsed: Parsed) -> None:
    content = "".join(parsed.text)
    assert report.circumstances["command"] in content
    assert ["machine, processor", report.circumstances["machine"]["processor"]] in parsed.rows
    assert ["vllm", report.absent["vllm"]] in parsed.rows
    for name in dict.fromkeys(record.question for record in report.records):
        assert [name] in parsed.rows
    assert {"and", "so"} <= set(parsed.marks)


def test_page_accuses_a_broken_promise(report: Report, shown_figures: PageFigures) -> None:
    assert not shown_figures.broken_promises and "did not keep it" not in page(report, shown_figures, [])
    broken = replace(
        report,
        records=[
            replace(each, quality=replace(each.quality, identical=False, departs_at=5))
            if each.subject == EXACT
            else each
            for each in report.records
        ],
    )
    assert f"did not keep it: {EXACT} on maths (differs at token 5" in page(broken, page_figures(broken), [])


def test_page_of_an_empty_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    empty = Report(settings={}, circumstances={}, baseline=PLAIN, subjects={})
    assert write_page(empty, page_figures(empty), tmp_path / "new" / "folder") == [tmp_path / "new" / "folder" / FILE]
    Parsed((tmp_path / "new" / "folder" / FILE).read_text(encoding="utf-8"))


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    report: Report, shown_figures: PageFigures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_text("old")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # its pictures take their time
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no room")))
    with pytest.raises(OSError, match="no room"):
        write_page(report, shown_figures, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {FILE: "old"}


def test_the_file_carries_what_the_page_shows(report: Report, shown_figures: PageFigures, tmp_path: Path) -> None:
    write_json(report, shown_figures, tmp_path / "bench.json")
    carried = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert carried == json.loads(json.dumps(asdict(shown_figures)))
    assert read_report(tmp_path / "bench.json") == report
    assert page_figures(read_report(tmp_path / "bench.json")) == shown_figures


def test_the_shipped_report_carries_the_figures_of_its_records() -> None:
    carried = read("bench-quick.json")["figures"]
    assert carried == json.loads(json.dumps(asdict(page_figures(read_report(RESULTS / "bench-quick.json")))))


def test_where_two_texts_part() -> None:
    assert parted("one two three", "one twice four") == ("one <mark>two</mark> three", "one <mark>twice</mark> four")
    assert parted("one", "one two") == ("one<mark>(ends here)</mark>", "one<mark> two</mark>")
    assert parted("", "a<b") == ("<mark>(ends here)</mark>", "<mark>a&lt;b</mark>")


def test_looking_at_a_report_does_not_wait_for_torch() -> None:
    names = ("table", "page.plots", "report", "compare")
    program = (
        f"import sys; {'; '.join(f'import stridelm.bench.{name}' for name in names)}; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# -- the comparison


S = TypeVar("S", bound=Spread)


def times(spread: S, factor: float) -> S:
    return replace(spread, median=factor * spread.median, low=factor * spread.low, high=factor * spread.high)


def faster(each: Figures, factor: float) -> Figures:
    return replace(each, speed=times(each.speed, factor), speed_up=each.speed_up and times(each.speed_up, factor))


def test_compare_says_what_changed(report: Report, figures: list[Figures]) -> None:
    earlier = next(each for each in figures if each.subject == EXACT and each.suite == "maths")
    found = {change.what: change for change in changes(report, report, earlier, faster(earlier, 2.0))}
    assert found.keys() == {"tokens/s", "speed-up"}
    assert found["speed-up"].verdict == "+100%" and found["speed-up"].tone == "better"
    slower = changes(report, report, earlier, faster(earlier, 0.5))
    assert {change.tone for change in slower} == {"worse"} and slower[0].verdict == "-50%"


def test_compare_says_where_it_may_be_chance(report: Report, figures: list[Figures]) -> None:
    earlier = replace(figures[1], speed=Spread(10, 9, 11))
    found = changes(report, report, earlier, replace(earlier, speed=Spread(11.5, 10.9, 12)))
    assert found[0].verdict == f"+15%, {WITHIN}" and found[0].tone == ""


def test_compare_counts_questions_won_and_lost(report: Report, figures: list[Figures]) -> None:
    """As many right as before, but others."""
    flipped = {"maths-1": False, "maths-2": True}
    after = replace(
        report,
        records=[
            replace(each, quality=replace(each.quality, right=flipped.get(each.question, each.quality.right)))
            for each in report.records
        ],
    )
    earlier = next(each for each in figures if each.subject == EXACT and each.suite == "maths")
    found = {change.what: change.verdict for change in changes(report, after, earlier, earlier)}
    assert found["right"] == "+0 points (1 won and 1 lost of 4 questions)"


def test_compare_shows_text_that_came_to_differ(report: Report, figures: list[Figures]) -> None:
    before = [each for each in figures if each.subject == EXACT]
    after = [replace(each, identical=0.5, differs=True, departs_at=9.0) for each in before]
    lines = shown(compare(report, report, before, after), 200)
    assert sum("speed-up" in line and "text differs at token 9" in line for line in lines) == len(before)
    assert sum("identical" in line and "-50 points" in line for line in lines) == len(before)


def test_compare_warns(report: Report, figures: list[Figures]) -> None:
    after = made_report((PLAIN, EXACT, LOSSY, LOOPING), questions=3)
    after.circumstances |= {"commit": "other", "time": "later", "model": "another", "machine": {"threads": 4}}
    after.circumstances["versions"] = {"torch": "3.0"}
    after.settings["max_tokens"] = 128
    after.subjects[EXACT] = {"decoder": "self", "exact": True}
    found = warnings(report, after)
    for part in (
        "model: smollm2-135m before, another after",
        "machine, threads: 2 before, 4 after",
        "versions, torch: 2.13.0 before, 3.0 after",
        "setting max_tokens: 96 before, 128 after",
        "auto: decoder: auto before, self after",
        "maths: 1 questions were put in one of them only",
    ):
        assert part in found
    assert not any("commit" in line or "later" in line for line in found)
    assert warnings(report, report) == []
    others = [each for each in measure(after) if each.suite != "code"]
    lines = shown(compare(report, after, figures, others), 160)
    assert "only before: suite code" in lines and f"only before: {SERVER} on maths" in lines
    assert lines[0].endswith("commit 26e0761, 2026-11-20T10:00:00+00:00") and "warning: model:" in "\n".join(lines)


def test_compare_of_runs_with_nothing_in_common(report: Report, figures: list[Figures]) -> None:
    assert "nothing was measured by both" in shown(compare(report, report, figures, []), 100)
