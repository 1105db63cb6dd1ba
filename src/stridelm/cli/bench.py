"""`stridelm bench`: what several tokens per pass do for a model on this machine, beside its peers, in one run."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stridelm.bench.compare import compare
from stridelm.bench.measures import measure, theory
from stridelm.bench.page.page import write_page
from stridelm.bench.quality import judge, mean_log_likelihood
from stridelm.bench.records import Answer, Quality, Question, Report, read_report
from stridelm.bench.run import Judge, Task, circumstances
from stridelm.bench.run import run as ask_all
from stridelm.bench.scenarios import agent_figures, voice_figures
from stridelm.bench.subjects import Subject, prompt_of
from stridelm.bench.suites.agent import AgentTask
from stridelm.bench.suites.long_prompts import LONG_SIZES, long_questions
from stridelm.bench.suites.table import SUITES, own_questions, questions
from stridelm.bench.table import table
from stridelm.params import InputError
from stridelm.settings import DECODERS, PLAIN, DecodeSettings, LoadSettings

if TYPE_CHECKING:
    from stridelm.api import LanguageModel
    from stridelm.bench.figures import Figures

FILE = "bench.json"
PEERS = ("transformers", "transformers-draft", "transformers-look-up")
"""Ways of asking transformers, as the command line names them, in the order of `hugging_face.Way`."""
_QUICK_QUESTIONS, _QUICK_TOKENS, _QUICK_ROUNDS = 2, 64, 1
_QUICK_SUBJECTS = (PLAIN, "auto", "self", "ngram", "transformers")
_ROUNDS = 3
_OWN_TOKENS = 128
"""Of answers to a user's own prompts."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    out: Path
    model: str
    adapter: str | None
    draft_model: str | None
    heads: str | None
    suites: tuple[str, ...]
    """All of them if empty and there are no prompts."""
    prompts: Path | None
    subjects: tuple[str, ...]
    urls: tuple[str, ...]
    rounds: int | None
    limit: int | None
    max_tokens: int | None
    quick: bool
    load: LoadSettings


def run(request: Request) -> None:
    request = _settled(request)
    assert request.rounds is not None
    asked = _fixed_questions(request)
    import stridelm

    console = Console(highlight=False)
    model = stridelm.load(
        request.model,
        adapter=request.adapter,
        draft_model=request.draft_model,
        heads=request.heads,
        settings=request.load,
    )
    tasks: list[Task] = [AgentTask()] if "agent" in request.suites else []
    if "long" in request.suites:
        asked += _long_questions(model, request)
    from stridelm.bench.subjects.ours import check_questions

    check_questions(model, asked)
    subjects = _subjects(model, request)
    settings = {
        "model": request.model,
        "quick": request.quick,
        "max_tokens": request.max_tokens,
        "questions_per_suite": request.limit,
        "threads": request.load.threads,
    }
    described = circumstances(model.target.device, request.load.threads) | {"model": request.model}
    report = ask_all(
        subjects, asked, tasks, judge=_judge(model), rounds=request.rounds, settings=settings,
        circumstances=described, shown=lambda report: table(measure(report)),
    )  # fmt: skip
    figures = measure(report)
    report.extra |= _extra(model, report, figures)
    console.print(table(figures))
    for name, reason in report.absent.items():
        console.print(f"{name} took no part: {reason}", style="yellow", markup=False)
    for file in write(report, figures, request.out):
        console.print(f"wrote {file}", markup=False)


def write(report: Report, figures: "list[Figures]", folder: Path) -> list[Path]:
    """The JSON, the page and its pictures."""
    written = write_page(report, figures, folder)
    report.write(folder / FILE)
    return [folder / FILE, *written]


def show_comparison(before: Path, after: Path) -> None:
    first, second = read_report(before), read_report(after)
    Console(highlight=False).print(compare(first, second, measure(first), measure(second)))


def _settled(request: Request) -> Request:
    """With all defaults in their place; refuses what does not go together before anything is loaded."""
    if unknown := [name for name in request.suites if name not in SUITES]:
        raise InputError(f"--suite: there is no {unknown[0]!r}: choose among {', '.join(SUITES)}")
    known = {*DECODERS, *PEERS}
    if unknown := [name for name in request.subjects if name not in known]:
        raise InputError(
            f"--subject: there is no {unknown[0]!r}: choose among {', '.join(DECODERS)}, {', '.join(PEERS)}; a server "
            "is named by its --url"
        )
    for name in ("rounds", "limit", "max_tokens"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if request.out.exists() and not request.out.is_dir():
        raise InputError(f"--out {request.out} is a file: name a folder")
    return replace(
        request,
        suites=request.suites or (() if request.prompts else tuple(SUITES)),
        subjects=request.subjects or (_QUICK_SUBJECTS if request.quick else _default_subjects(request)),
        rounds=request.rounds or (_QUICK_ROUNDS if request.quick else _ROUNDS),
        limit=request.limit or (_QUICK_QUESTIONS if request.quick else None),
        max_tokens=request.max_tokens or (_QUICK_TOKENS if request.quick else None),
    )


def _default_subjects(request: Request) -> tuple[str, ...]:
    from stridelm.models.preview import may_have_masks, own_draft

    masks = ("self",) if may_have_masks(request.model, request.adapter) else ()
    has_draft = request.draft_model is not None or own_draft(request.model) is not None
    draft = ("draft",) if has_draft else ()
    peers = [name for name in PEERS if has_draft or name != "transformers-draft"]
    return (PLAIN, "auto", *masks, *draft, "ngram", *peers)


def _fixed_questions(request: Request) -> list[Question]:
    found = [
        question for name in request.suites if SUITES[name].is_fixed for question in questions(name, request.limit)
    ]
    if request.prompts is not None:
        found += own_questions(request.prompts, request.max_tokens or _OWN_TOKENS)[: request.limit]
    return [_cut(question, request.max_tokens) for question in found]


def _cut(question: Question, most: int | None) -> Question:
    return question if most is None else replace(question, max_tokens=min(most, question.max_tokens))


def _long_questions(model: "LanguageModel", request: Request) -> list[Question]:
    sizes = [size for size in LONG_SIZES if size + 256 <= model.engine.forward.longest][: 1 if request.quick else None]
    return [_cut(each, request.max_tokens) for each in long_questions(model.target.tokenizer.encode, sizes)]


def _subjects(model: "LanguageModel", request: Request) -> list[Subject]:
    from stridelm.bench.subjects.ours import ours

    decoders = [DecodeSettings(name) for name in request.subjects if name in DECODERS]
    found: list[Subject] = [*ours(model, decoders)]
    if any(name in PEERS for name in request.subjects):
        from stridelm.bench.subjects.hugging_face import hugging_face

        peers = dict(zip(PEERS, hugging_face(request.model, request.load, request.draft_model), strict=True))
        found += [peers[name] for name in request.subjects if name in PEERS]
    if request.urls:
        from stridelm.bench.subjects.server import Server

        found += [Server(url) for url in request.urls]
    return found


def _judge(model: "LanguageModel") -> Judge:
    """Texts are scored by the model itself, every one once: decoders that write the same are judged alike."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], float | None] = {}

    def judged(question: Question, answer: Answer, plain: Answer | None) -> Quality:
        prompt = tuple(model.encode(prompt_of(question)))
        if (prompt, answer.tokens) not in known:
            known[prompt, answer.tokens] = mean_log_likelihood(model, prompt, answer.tokens)
            model.forget()
        return judge(question, answer, plain, known[prompt, answer.tokens])

    return judged


def _extra(model: "LanguageModel", report: Report, figures: "list[Figures]") -> dict[str, Any]:
    """What suites were for, and what the cost curve would have had the speed-ups be."""
    extra: dict[str, Any] = {}
    suites = {record.suite for record in report.records}
    if "agent" in suites:
        found = agent_figures(report.records, report.baseline)
        extra["agent"] = {name: asdict(each) for name, each in found.items()}
    if "voice" in suites:
        extra["voice"] = {name: asdict(each) for name, each in voice_figures(report.records).items()}
    ours = {name for name, about in report.subjects.items() if about.get("library") == "stridelm"} - {report.baseline}
    expected = [(each, theory(each, model.cost)) for each in figures if each.subject in ours]
    extra["theory"] = [
        {"suite": each.suite, "subject": each.subject, "expected": of.expected, "measured": of.measured.median}
        for each, of in expected
        if of is not None
    ]
    return extra
