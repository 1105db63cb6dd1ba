"""Writes a report's files: `bench.json`, with records and figures, and the page with its pictures."""

import json
from dataclasses import asdict
from pathlib import Path

from stridelm.bench.page.page import write_page
from stridelm.bench.page_figures import PageFigures, page_figures
from stridelm.bench.records import VERSION, Report
from stridelm.files import write_bytes

FILE = "bench.json"


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the JSON, the page and its pictures; returns the files written."""
    figures = page_figures(report)
    written = write_page(report, figures, folder)
    write_json(report, figures, folder / FILE)
    return [folder / FILE, *written]


def write_json(report: Report, figures: PageFigures, file: Path) -> None:
    """Write the file that `records.read_report` reads. That ignores the figures and computes them from the records."""
    entry = {"version": VERSION, **asdict(report), "figures": asdict(figures)}
    write_bytes(file, f"{json.dumps(entry, indent=1)}\n".encode())
