"""`stridelm bench`: measures in one run what several tokens per pass gain for a model on this machine, compared with
transformers and servers."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stridelm.bench.advice import advice
from stridelm.bench.compare import compare
from stridelm.bench.measures import measure, theory
from stridelm.bench.quality import judge, mean_log_likelihood
from stridelm.bench.records import Answer, Quality, Question, Report, read_report
from stridelm.bench.report import write_report
from stridelm.bench.run import Judge, Task, circumstances
from stridelm.bench.run import run as ask_all
from stridelm.bench.scenarios import agent_figures, voice_figures
from stridelm.bench.subjects import Subject, prompt_of
from stridelm.bench.suites.agent import agent_tasks
from stridelm.bench.suites.long_prompts import LONG_SIZES, long_questions
from stridelm.bench.suites.table import SUITES, own_questions, questions
from stridelm.bench.table import table
from stridelm.params import InputError
from stridelm.settings import DECODERS, PLAIN, DecodeSettings, ModelChoice

if TYPE_CHECKING:
    from stridelm.api import LanguageModel
    from stridelm.bench.figures import Figures

PEERS = ("transformers", "transformers-draft", "transformers-look-up")
"""Names on the command line for transformers' ways of decoding, in the order of `hugging_face.Way`."""
_QUICK_QUESTIONS, _QUICK_TOKENS, _QUICK_ROUNDS = 2, 64, 1
_QUICK_SUBJECTS = (PLAIN, "auto", "self", "ngram", "transformers")
_ROUNDS = 3
_OWN_TOKENS = 128
"""Default maximum number of tokens of answers to a user's own prompts."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line asked for."""

    out: Path
    choice: ModelChoice
    suites: tuple[str, ...]
    """If empty and there are no prompts: all suites."""
    prompts: Path | None
    subjects: tuple[str, ...]
    urls: tuple[str, ...]
    rounds: int | None
    limit: int | None
    max_tokens: int | None
    quick: bool


def run(options: BenchOptions) -> None:
    options = _with_defaults(options)
    assert options.rounds is not None
    asked = _fixed_questions(options)
    from stridelm.api import LanguageModel

    console = Console(highlight=False)
    model = LanguageModel.load(options.choice)
    tasks: list[Task] = [*agent_tasks(options.limit)] if "agent" in options.suites else []
    if "long" in options.suites:
        asked += _long_questions(model, options)
    from stridelm.bench.subjects.ours import check_questions

    check_questions(model, asked)
    subjects = _subjects(model, options)
    settings = {
        "model": options.choice.model,
        "quick": options.quick,
        "max_tokens": options.max_tokens,
        "questions_per_suite": options.limit,
        "threads": options.choice.settings.threads,
    }
    described = circumstances(model.target.device, options.choice.settings.threads) | {"model": options.choice.model}
    report = ask_all(
        subjects, asked, tasks, judge=_judge(model), rounds=options.rounds, settings=settings,
        circumstances=described, shown=lambda report: table(measure(report)),
    )  # fmt: skip
    figures = measure(report)
    report.extra |= _extra(model, report, figures)
    console.print(table(figures))
    for name, reason in report.absent.items():
        console.print(f"{name} took no part: {reason}", style="yellow", markup=False)
    for file in write_report(report, options.out):
        console.print(f"wrote {file}", markup=False)
    console.print(advice(report), style="bold", markup=False, soft_wrap=True)


def write_again(file: Path, out: Path) -> None:
    """Write all files of a report again, with figures computed from its records."""
    report = read_report(file)
    console = Console(highlight=False)
    for written in write_report(report, out):
        console.print(f"wrote {written}", markup=False)


def show_comparison(before: Path, after: Path) -> None:
    first, second = read_report(before), read_report(after)
    Console(highlight=False).print(compare(first, second, measure(first), measure(second)))


def _with_defaults(options: BenchOptions) -> BenchOptions:
    """The options with all defaults filled in. Invalid ones are refused here, before anything is loaded."""
    if unknown := [name for name in options.suites if name not in SUITES]:
        raise InputError(f"--suite: there is no {unknown[0]!r}: choose among {', '.join(SUITES)}")
    known = {*DECODERS, *PEERS}
    if unknown := [name for name in options.subjects if name not in known]:
        raise InputError(
            f"--subject: there is no {unknown[0]!r}: choose among {', '.join(DECODERS)}, {', '.join(PEERS)}; a server "
            "is named by its --url"
        )
    for name in ("rounds", "limit", "max_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file: name a folder")
    return replace(
        options,
        suites=options.suites or (() if options.prompts else tuple(SUITES)),
        subjects=options.subjects or (_QUICK_SUBJECTS if options.quick else _default_subjects(options)),
        rounds=options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS),
        limit=options.limit or (_QUICK_QUESTIONS if options.quick else None),
        max_tokens=options.max_tokens or (_QUICK_TOKENS if options.quick else None),
    )


def _default_subjects(options: BenchOptions) -> tuple[str, ...]:
    from stridelm.models.preview import may_have_masks, own_draft

    masks = ("self",) if may_have_masks(options.choice.model, options.choice.adapter) else ()
    has_draft = options.choice.draft_model is not None or own_draft(options.choice.model) is not None
    draft = ("draft",) if has_draft else ()
    peers = [name for name in PEERS if has_draft or name != "transformers-draft"]
    return (PLAIN, "auto", *masks, *draft, "ngram", *peers)


def _fixed_questions(options: BenchOptions) -> list[Question]:
    found = [
        question for name in options.suites if SUITES[name].is_fixed for question in questions(name, options.limit)
    ]
    if options.prompts is not None:
        found += own_questions(options.prompts, options.max_tokens or _OWN_TOKENS)[: options.limit]
    return [_cut(question, options.max_tokens) for question in found]


def _cut(question: Question, most: int | None) -> Question:
    return question if most is None else replace(question, max_tokens=min(most, question.max_tokens))


def _long_questions(model: "LanguageModel", options: BenchOptions) -> list[Question]:
    sizes = [size for size in LONG_SIZES if size + 256 <= model.engine.forward.longest][
        : 1 if options.quick else options.limit
    ]
    return [_cut(each, options.max_tokens) for each in long_questions(model.target.tokenizer.encode, sizes)]


def _subjects(model: "LanguageModel", options: BenchOptions) -> list[Subject]:
    from stridelm.bench.subjects.ours import ours

    decoders = [DecodeSettings(name) for name in options.subjects if name in DECODERS]
    found: list[Subject] = [*ours(model, decoders)]
    if any(name in PEERS for name in options.subjects):
        from stridelm.bench.subjects.hugging_face import hugging_face

        peers = dict(
            zip(
                PEERS,
                hugging_face(options.choice.model, options.choice.settings, options.choice.draft_model),
                strict=True,
            )
        )
        found += [peers[name] for name in options.subjects if name in PEERS]
    if options.urls:
        from stridelm.bench.subjects.server import Server

        found += [Server(url) for url in options.urls]
    return found


def _judge(model: "LanguageModel") -> Judge:
    """A judge that scores texts by the model itself, each text once, so that equal texts get equal scores."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], float | None] = {}

    def judged(question: Question, answer: Answer, plain: Answer | None) -> Quality:
        prompt = tuple(model.encode(prompt_of(question)))
        if (prompt, answer.tokens) not in known:
            known[prompt, answer.tokens] = mean_log_likelihood(model, prompt, answer.tokens)
            model.forget()
        return judge(question, answer, plain, known[prompt, answer.tokens])

    return judged


def _extra(model: "LanguageModel", report: Report, figures: "list[Figures]") -> dict[str, Any]:
    """The figures of the suites `agent` and `voice`, and the speed-ups that the cost curve predicts."""
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
