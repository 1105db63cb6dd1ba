"""The parts of the page: escaped text, tables, and two texts side by side with their first difference marked.
Everything that comes from a report must be escaped by `said`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import takewhile

from stridelm.bench.charts import Table

STYLE = """
:root{color-scheme:light dark;--paper:#ffffff;--ink:#1f2328;--grey:#59636e;--grid:#d0d7de;--soft:#f6f8fa;
--alarm:#9a3b00;--alarm-soft:#fff1e5;--good:#116329;--link:#0969da}
@media (prefers-color-scheme:dark){:root{--paper:#0f1419;--ink:#e6edf3;--grey:#9198a1;--grid:#30363d;--soft:#171d24;
--alarm:#ffa657;--alarm-soft:#33200f;--good:#56d364;--link:#79b8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:75rem;margin:0 auto;padding:1rem 1rem 4rem}
h1{font-size:1.7rem;margin:.6rem 0}h2{margin:2.4rem 0 .6rem;border-bottom:1px solid var(--grid);padding-bottom:.2rem}
h3{margin:1.6rem 0 .3rem}a{color:var(--link)}nav a{margin-right:1rem;white-space:nowrap}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--grey);padding:.2rem 0 .5rem;caption-side:top}
caption span{position:sticky;left:0;display:inline-block;max-width:calc(100vw - 4rem)}
th,td{padding:.28rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--grid)}
thead th{vertical-align:bottom;background:var(--soft)}
td{white-space:nowrap}.words{white-space:normal}
th:first-child,th.words,tbody th,.words,.lines th{text-align:left}tbody th{font-weight:normal}
.lines td{overflow-wrap:anywhere}
.beside{display:grid;gap:0 2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
.beside>*{min-width:0}
tbody th[scope=rowgroup]{font-weight:600;background:var(--soft)}
main .wide thead th:first-child,main .wide tbody th[scope=row]{position:sticky;left:0}
main .wide tbody th[scope=row]{background:var(--paper)}
.verdict{min-width:11rem}main .wide tbody th[scope=row]{min-width:6.5rem}
.alarm{color:var(--alarm);font-weight:600}.good{color:var(--good)}.faint{color:var(--grey)}
.box{border-left:4px solid var(--alarm);background:var(--alarm-soft);padding:.6rem 1rem;margin:1rem 0}
figure{margin:1rem 0 2rem}figure .scroll{margin:0}
svg{display:block;width:100%;min-width:40rem;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
figcaption{color:var(--grey);font-size:.9rem;max-width:48rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext;background:var(--soft);padding:.7rem;
margin:.3rem 0;font:.8rem/1.45 ui-monospace,monospace}
mark{background:var(--alarm-soft);color:var(--alarm);font-weight:700;outline:1px solid var(--alarm)}
details{margin:.2rem 0}summary{cursor:pointer}
.texts{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
.texts h4{margin:.4rem 0 0;font-size:.8rem;color:var(--grey)}
@media (max-width:40rem){body{font-size:15px}th,td{padding:.28rem .35rem}
.texts{width:calc(100vw - 3.5rem)}.verdict{min-width:7.5rem}
main .wide tbody th[scope=row]{min-width:5rem}}
"""
_TEXT_COLUMNS = ("subject", "text", "path")
"""Columns that are left-aligned, because they hold words; numbers are right-aligned."""
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Characters that HTML does not allow, or that are invisible."""


def said(value: object) -> str:
    """The value's text, escaped for HTML."""
    return escape(_UNSEEN.sub("\ufffd", str(value)))


def element(name: str, content: str, **attributes: str) -> str:
    """`content` is HTML, attributes are text. Attributes named by a Python keyword have an underscore at the end."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{said(value)}"' for key, value in attributes.items())
    return f"<{name}{given}>{content}</{name}>"


def table(caption: str, titles: Iterable[str], bodies: Iterable[str], class_: str = "") -> str:
    """A table in its own scrolling box, which the keyboard can scroll as well, so that the page itself does not scroll
    sideways on a phone."""
    heads = "".join(_head(title) for title in titles)
    content = element("caption", element("span", said(caption))) + element("thead", element("tr", heads))
    content += "".join(bodies)
    return element("div", element("table", content), class_=f"scroll {class_}".strip(), tabindex="0", role="region",
                   aria_label=caption)  # fmt: skip


def _head(title: str) -> str:
    """A line break in the title marks where it may be broken."""
    content = said(title).replace("\n", "<wbr>")
    return element("th", content, scope="col", class_="words" if title in _TEXT_COLUMNS else "figure")


def text_table(shown: Table, class_: str = "") -> str:
    """The table as HTML; with the class `lines` both columns are words."""
    kind = {"class_": "words"} if class_ == "lines" else {}
    rows = [
        element("th", said(first), scope="row") + "".join(element("td", said(cell), **kind) for cell in cells)
        for first, *cells in shown.rows
    ]
    body = element("tbody", "".join(element("tr", row) for row in rows))
    return table(shown.caption, shown.head, [body], class_=class_)


def texts(titles: Sequence[str], contents: Sequence[str]) -> str:
    """Texts side by side if there is room; `contents` is HTML."""
    parts = [
        element("div", element("h4", said(title)) + element("pre", content))
        for title, content in zip(titles, contents, strict=True)
    ]
    return element("div", "".join(parts), class_="texts")


def parted(plain: str, other: str) -> tuple[str, str]:
    """Both texts as HTML, with the first word that differs marked in each."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(plain, other, strict=False)))
    # From the beginning of the word: half a word would be hard to read.
    start = max((place + 1 for place in range(same) if plain[place].isspace()), default=0)
    if plain == other or same == min(len(plain), len(other)):
        start = same
    return _marked(plain, start), _marked(other, start)


def _marked(text: str, start: int) -> str:
    rest = text[start:]
    found = re.match(r"\s*\S+", rest)
    word = found[0] if found else rest
    mark = element("mark", said(word)) if word else element("mark", "(ends here)")
    return said(text[:start]) + mark + said(rest[len(word) :])


def joined(parts: Iterator[str] | list[str]) -> str:
    return "\n".join(part for part in parts if part)
