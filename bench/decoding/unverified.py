"""How good the text of unverified decoding is (`adaptive` and `static`), for several conversions of one base model.

    python bench/decoding/unverified.py --base smollm2 --subject NAME=MODEL[,ADAPTER] ... --prompts FILE \
        --json OUT.json [--plain PLAIN.json] [--count 48] [--max-tokens 128] [--thresholds 0.5 0.7 0.9 0.95] ...
    python bench/decoding/unverified.py --render OUT.json ...

A subject is the base model with an adapter, or a converted model that stands alone. All is greedy. Texts are held
against plain decoding, the subject's own and the base model's; judged by the base model; and searched for repetition.
The strides of `static` with the largest k show the two failures of masks that do not know of each other: neighbours
that do not fit, and tokens repeated far ahead. OUT.json is written after every subject; others that it holds stay.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stridelm import DecodeSettings, InputError, LanguageModel, LoadSettings, Result, SamplingParams, load
from stridelm.bench.quality import Share, agreement, repeated_ngrams
from stridelm.cache.kv_cache import BLOCK_SIZE
from stridelm.files import write_json
from stridelm.profile import changed_fields
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import PLAIN
from stridelm.train.record import circumstances

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.decoding.base_model import BaseModel, Tokens
from bench.decoding.text_quality import Judged, as_strides, misfits, repeated_tokens, repetition_by_depth, total
from bench.decoding.unverified_tables import setting_name, tables

EXAMPLES = 5
_CONTEXT = 12
"""Tokens before an example that are shown with it."""


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    model: str
    adapter: str | None

    @classmethod
    def parse(cls, text: str) -> "Subject":
        name, equals, place = text.partition("=")
        model, _, adapter = place.partition(",")
        if not (name and equals and model):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MODEL or NAME=MODEL,ADAPTER")
        return cls(name, model, adapter or None)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.render:
        print(tables([json.loads(file.read_text()) for file in options.render]))
        return
    bench = Bench(options)
    content = bench.opened(options.json)
    failed: list[str] = []
    for subject in options.subject:
        try:
            entry = bench.measure(subject)
        except InputError as error:
            # The machine is dear: one bad subject must not cost the others.
            failed.append(f"{subject.name}: {error}")
            continue
        finally:
            gc.collect()  # the subject's weights, before the next one's come
        content["subjects"][subject.name] = entry
        write_json(options.json, content)
    if failed:
        sys.exit("\n".join(failed))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2", help="the model that was converted")
    parser.add_argument("--subject", type=Subject.parse, nargs="+", action="extend", default=[], metavar="NAME=MODEL")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--count", type=int, default=48, help="the first so many prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.5, 0.7, 0.9, 0.95])
    parser.add_argument("--k-max", type=int, default=9, help="adaptive: the most tokens a pass")
    parser.add_argument("--static", type=int, nargs="*", default=[2, 4, 8], help="tokens a pass")
    parser.add_argument("--batch", type=int, default=48, help="answers side by side")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--plain", type=Path, help="keeps the base model's plain answers; read if it is there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--render", type=Path, nargs="+", help="measure nothing: print the tables of these files")
    options = parser.parse_args(arguments)
    if not options.render and not (options.subject and options.prompts and options.json):
        parser.error("--subject, --prompts and --json are needed")
    return options


class Bench:
    """The base model, its plain answers, and what subjects are asked."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lines: list[PromptLine] = read_prompts(options.prompts)[: options.count]
        settings = LoadSettings(device=options.device, dtype=options.dtype)
        self.base = BaseModel(options.base, settings, self.lines, options.max_tokens, options.batch)
        self.load_settings = LoadSettings(
            device=options.device, dtype=options.dtype, cache_tokens=options.batch * (self.base.longest + BLOCK_SIZE)
        )
        self.params = SamplingParams(max_tokens=options.max_tokens)
        self.plain = self.base.plain_answers(options.plain)
        self.plain_judged = self.base.judge(self.plain)
        self.plain_figures = text_figures(self.plain, self.plain_judged)

    def opened(self, file: Path) -> dict[str, Any]:
        """What is in the file already, or a new beginning: figures of one file were made alike."""
        options = self.options
        conditions = {
            "base": options.base,
            "fingerprint": self.base.checkpoint.fingerprint,
            "prompts": options.prompts.name,
            "count": len(self.lines),
            "max_tokens": options.max_tokens,
            "dtype": options.dtype,
        }
        new = {"conditions": conditions, "base_plain": self.plain_figures, "subjects": {}}
        if not file.is_file():
            return new
        content = json.loads(file.read_text())
        if content["conditions"] != conditions:
            raise InputError(f"{file}: holds figures that were made otherwise ({content['conditions']}): name another")
        return content

    def measure(self, subject: Subject) -> dict[str, Any]:
        """All figures of one subject; a line for each setting is printed on the way."""
        model = load(subject.model, adapter=subject.adapter, settings=self.load_settings)
        if model.gate is None:
            raise InputError(f"{subject.model} has no masks: give its adapter, or a model that names a mask_token_id")
        self._check_prompts(model)
        shares_weights = model.target.fingerprint == self.base.checkpoint.fingerprint
        own, own_judged, own_figures = self.plain, self.plain_judged, self.plain_figures
        if not shares_weights:
            results, seconds = self._answer(model, DecodeSettings(PLAIN))
            own = [result.token_ids for result in results]
            own_judged = self.base.judge(own)
            own_figures = self._figures(results, own, own_judged, seconds)
            self._print(subject, PLAIN, own_figures)
        measured: list[dict[str, Any]] = []
        longest: tuple[int, list[Result], list[Judged]] | None = None
        for settings in self._settings(model.gate.k):
            results, seconds = self._answer(model, settings)
            judged = self.base.judge([result.token_ids for result in results])
            entry = changed_fields(settings)
            measured.append(entry | self._figures(results, own, judged, seconds))
            self._print(subject, setting_name(entry), measured[-1])
            if settings.decoder == "static" and settings.k and settings.k > (longest[0] if longest else 1):
                longest = settings.k, results, judged
        made = circumstances(model.target.device)
        del made["command"]  # it would name `stridelm`
        return {
            "model": subject.model,
            "adapter": subject.adapter,
            "shares_weights": shares_weights,
            "made": made | {"date": datetime.now(UTC).isoformat(timespec="seconds")},
            "plain": own_figures,
            "settings": measured,
            "failures": None if longest is None else self._failures(*longest, own, own_judged),
        }

    def _check_prompts(self, model: LanguageModel) -> None:
        for line, tokens in zip(self.lines, self.base.prompts, strict=True):
            if tuple(model.encode(line.prompt)) != tokens:
                raise InputError(
                    f"{line.place}: {model.target.name} reads this prompt as other tokens than the base model does: "
                    "give it the base model's tokenizer and chat template"
                )

    def _settings(self, mask_k: int) -> Iterator[DecodeSettings]:
        """No more tokens a pass than the masks were trained for."""
        k_max = min(self.options.k_max, mask_k)
        for threshold in self.options.thresholds:
            yield DecodeSettings("adaptive", k_max=k_max, threshold=threshold)
        for k in self.options.static:
            if k <= mask_k:
                yield DecodeSettings("static", k=k)

    def _answer(self, model: LanguageModel, settings: DecodeSettings) -> tuple[list[Result], float]:
        prompts: list[Any] = [line.prompt for line in self.lines]
        results: list[Result] = []
        started = time.perf_counter()
        for start in range(0, len(prompts), self.options.batch):
            part: list[str] = prompts[start : start + self.options.batch]  # or chats
            results += model.generate(part, self.params, decoder=settings)
        return results, time.perf_counter() - started

    def _figures(
        self, results: list[Result], own: list[Tokens], judged: list[Judged], seconds: float
    ) -> dict[str, Any]:
        answers = [result.token_ids for result in results]
        forwards = sum(result.stats.forwards for result in results)
        vocabulary = self.base.checkpoint.vocabulary
        return {
            "forwards": forwards,
            "tokens_per_forward": round(sum(map(len, answers)) / forwards, 4),
            "seconds": round(seconds, 2),
            "own": against(own, answers),
            "base": against(self.plain, answers),
            "foreign_tokens": sum(token >= vocabulary for answer in answers for token in answer),
            **text_figures(answers, judged),
        }

    def _failures(
        self, k: int, results: list[Result], judged: list[Judged], own: list[Tokens], own_judged: list[Judged]
    ) -> dict[str, Any]:
        """What goes wrong within strides; beside it, plain text that is cut into pieces of k tokens."""
        answers = [result.token_ids for result in results]
        strides = [[stride.tokens for stride in result.strides] for result in results]
        found = [misfits(*each) for each in zip(strides, judged, strict=True)]
        own_strides = [as_strides(answer, k) for answer in own]
        own_found = [misfits(*each) for each in zip(own_strides, own_judged, strict=True)]
        plain_strides = [stride for answer in self.plain for stride in as_strides(answer, k)]
        return {
            "k": k,
            "strides": sum(map(len, strides)),
            "misfits": total(share for share, _ in found).entry(),
            "misfits_of_own_plain": total(share for share, _ in own_found).entry(),
            "misfit_examples": [
                self._shown(answer, places[0] - 1, places[0] + 1)
                for answer, (_, places) in zip(answers, found, strict=True)
                if places
            ][:EXAMPLES],
            **depth_figures([stride for each in strides for stride in each], k),
            "base_plain": depth_figures(plain_strides, k),
            "repetition_examples": [
                self._shown(answer, *span)
                for answer, each in zip(answers, strides, strict=True)
                if (span := first_repetition(each))
            ][:EXAMPLES],
        }

    def _shown(self, answer: Tokens, start: int, end: int) -> str:
        """Some text, then the tokens in question, each in brackets."""
        tokenizer: Any = self.base.checkpoint.tokenizer
        before = tokenizer.decode(answer[max(0, start - _CONTEXT) : start])
        return before + "".join(f"[{tokenizer.decode([token])}]" for token in answer[start:end])

    def _print(self, subject: Subject, setting: str, figures: dict[str, Any]) -> None:
        own, base = figures["own"], figures["base"]
        print(
            f"{subject.name}, {setting}: {figures['tokens_per_forward']:.2f} tokens per forward; agreement "
            f"{own['agreement']:.3f} own, {base['agreement']:.3f} base; identical {own['identical']['count']} own, "
            f"{base['identical']['count']} base of {len(self.lines)}; log-likelihood {figures['log_likelihood']:.3f} "
            f"(base {self.plain_figures['log_likelihood']:.3f}); repeated 4-grams "
            f"{figures['repeated_ngrams']['share']:.3f}, tokens {figures['repeated_tokens']['share']:.3f}; "
            f"{figures['seconds']:.1f} s",
            flush=True,
        )


def text_figures(answers: list[Tokens], judged: list[Judged]) -> dict[str, Any]:
    """What can be said of answers by themselves."""
    log_probabilities = [value for each in judged for value in each.log_probabilities]
    return {
        "tokens": len(log_probabilities),
        "log_likelihood": round(statistics.fmean(log_probabilities), 5),
        "log_likelihood_sum": round(sum(log_probabilities), 3),
        "repeated_ngrams": total(map(repeated_ngrams, answers)).entry(),
        "repeated_tokens": total(map(repeated_tokens, answers)).entry(),
    }


def against(plain: list[Tokens], answers: list[Tokens]) -> dict[str, Any]:
    pairs = list(zip(plain, answers, strict=True))
    return {
        "agreement": round(statistics.fmean(agreement(*pair) for pair in pairs), 5),
        "identical": Share(sum(first == second for first, second in pairs), len(pairs)).entry(),
    }


def depth_figures(strides: list[Tokens], k: int) -> dict[str, Any]:
    at_once, in_stride = repetition_by_depth(strides, k)
    return {
        name: {"all": total(shares).entry(), "by_depth": [share.entry() for share in shares]}
        for name, shares in (("repeated_at_once", at_once), ("repeated_in_stride", in_stride))
    }


def first_repetition(strides: list[Tokens]) -> tuple[int, int] | None:
    """Where the first stride of an answer that holds a token twice running begins and ends."""
    start = 0
    for stride in strides:
        if repeated_tokens(stride).count:
            return start, start + len(stride)
        start += len(stride)
    return None


if __name__ == "__main__":
    main()
