"""Our models for lm-eval (EleutherAI's evaluation harness), as `--model stridelm`.

lm-eval 0.4.13 finds models of other packages only after they were registered, so `stridelm-lm-eval`, or
`python -m stridelm.bench.lm_eval`, does that and then runs lm-eval's own command line. Versions that look for entry
points of the group `lm_eval.models` find `stridelm` by themselves.

Every request is a sequence of the engine; requests with different settings can run at once. `--batch_size` is the
maximum number of sequences at once.
"""

import math
import random
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import fields
from typing import Any, cast

from stridelm.light import install_command

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry

    # Importing this package also fills lm-eval's registry, which lm-eval fills by itself only if it is empty.
    from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: lm-eval is needed here, {install_command('bench')}") from error

from tqdm import tqdm

from stridelm.api import LanguageModel
from stridelm.engine.scheduler import MAX_SEQUENCES
from stridelm.params import InputError, SamplingParams
from stridelm.settings import NO_ADAPTER, DecodeSettings, LoadSettings, ModelChoice
from stridelm.stats import Stats, path_in_words
from stridelm.types import Sequence, Stride

NAME = "stridelm"
_PARTS = ("model", "adapter", "draft_model", "heads")
_BATCH = ("batch_size", "max_batch_size")
_LOAD, _DECODE = (tuple(field.name for field in fields(settings)) for settings in (LoadSettings, DecodeSettings))
ARGUMENTS = (*_PARTS, *_DECODE, *_LOAD, *_BATCH)
"""The names that --model_args accepts."""
_AUTO_BATCH = "auto"
_DEFAULT_ANSWER = 256
"""Maximum number of tokens of an answer if the task sets none; lm-eval's own models have the same."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a task or --gen_kwargs may set besides `until`, `max_gen_toks` and `do_sample`."""


class StrideLM(TemplateLM):
    """A loaded model with lm-eval's interface. Likelihoods are the base model's own, with any decoder."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments`: see ARGUMENTS; settings as `stridelm generate` has them."""
        super().__init__()
        unknown = [name for name in arguments if name not in ARGUMENTS]
        if unknown:
            raise InputError(f"model_args: there is no {unknown[0]!r}: {', '.join(ARGUMENTS)} are known")
        if "adapter" in arguments and arguments["adapter"] is None:
            arguments["adapter"] = NO_ADAPTER  # lm-eval reads the word `none` as None
        given = {name: value for name, value in arguments.items() if value is not None}
        self.decode = DecodeSettings(**{name: given[name] for name in _DECODE if name in given})
        settings = LoadSettings(**{name: given[name] for name in _LOAD if name in given})
        self.model = LanguageModel.load(
            ModelChoice(**{name: str(given[name]) for name in _PARTS if name in given}, settings=settings)
        )
        self.model.check(self.decode)
        self.model.engine.scheduler.max_sequences = _max_sequences(*(given.get(name) for name in _BATCH))
        self.tokenizer: Any = self.model.target.tokenizer
        self.stats = Stats()
        """Totals over all answers so far."""

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "StrideLM":
        """lm-eval always passes its own --batch_size and --device besides --model_args; the latter take precedence."""
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**own | arg_dict)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "StrideLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # Text and tokens

    @property
    def eot_token_id(self) -> int:
        """The token that begins texts if the model has no special token for that."""
        ends = [self.tokenizer.eos_token_id, *sorted(self.model.target.eos_ids)]
        found = next((token for token in ends if token is not None), None)
        if found is None:
            raise InputError(f"{self.model.target.name} has no token that begins or ends a text: nothing to score from")
        return found

    @property
    def prefix_token_id(self) -> int:
        return self.eot_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a prompt and its answer, or of a text to score."""
        return self.model.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        if add_special_tokens is None:
            # A chat template has already written the token that begins texts.
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.decode([self.prefix_token_id]))
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        # A template is a program that comes with the model: it may raise anything for messages that it does not
        # support, such as a system message.
        except Exception as error:
            name = self.model.target.name
            raise InputError(f"{name}'s chat template does not take the task's messages ({error})") from error

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's text, for lm-eval's records."""
        if isinstance(chat_template, str):
            raise InputError(f"apply_chat_template: there is only the model's default, not {chat_template!r}")
        return super().chat_template(chat_template)

    @property
    def tokenizer_name(self) -> str:
        """The key under which lm-eval caches rendered prompts."""
        return f"{self.model.target.name}-{self.model.target.fingerprint}".replace("/", "__")

    # Requests

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        asked = [cast(tuple[str, dict[str, Any]], request.args) for request in requests]
        sequences = [self._answer(context, settings) for context, settings in asked]
        texts = [""] * len(sequences)
        for number, strides in self._run(sequences, "generate_until", disable_tqdm):
            texts[number] = "".join(stride.text for stride in strides)
            self.stats.tokens += sequences[number].stats.tokens
            self.stats.forwards += sequences[number].stats.forwards
            self.stats.own_forwards += sequences[number].stats.own_forwards
            self.cache_hook.add_partial("generate_until", asked[number], texts[number])
        return texts

    def _answer(self, context: str, settings: dict[str, Any]) -> Sequence:
        """A sequence for one request. Prompts that are too long lose their beginning, as with lm-eval's own models."""
        params = _params(settings)
        room = self.max_length - params.max_tokens
        if room < 1:
            raise InputError(
                f"max_gen_toks is {params.max_tokens}, but {self.model.target.name} takes {self.max_length} tokens "
                "with the prompt: ask for fewer with --gen_kwargs max_gen_toks=N"
            )
        tokens = self.tok_encode(context) or [self.prefix_token_id]
        return self.model.sequence(tokens[-room:], params, self.decode)

    def _loglikelihood_tokens(
        self,
        requests: Items[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """For every continuation: its log-probability, and whether greedy decoding would write it."""
        for _, _, continuation in requests:
            if len(continuation) >= self.max_length:
                raise InputError(
                    f"a text of {len(continuation)} tokens is to be scored, but {self.model.target.name} takes "
                    f"{self.max_length} with at least one before them"
                )
        texts = [(context + continuation)[-self.max_length :] for _, context, continuation in requests]
        found = [(0.0, True)] * len(requests)
        sequences = [self.model.scoring(text, alternatives=1) for text in texts]
        for number, strides in self._run(sequences, "loglikelihood", disable_tqdm):
            key, _, continuation = requests[number]
            # The first token of a text is not scored.
            start = len(texts[number]) - len(continuation) - 1
            probabilities = [each for stride in strides for each in stride.confidence][start:]
            favourites = [places[0][0] for stride in strides for places in stride.alternatives][start:]
            found[number] = sum(map(_log, probabilities)), favourites == continuation
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, found[number])
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[None, list[int], list[int]]] = []
        ends: list[int] = []
        for request in requests:
            # One token less than fits: a window has one token of context besides the tokens to score.
            parts = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length - 1, context_len=1
            )
            windows += [(None, *make_disjoint_window(part)) for part in parts]
            ends.append(len(windows))
        scores = [score for score, _ in self._loglikelihood_tokens(windows, disable_tqdm)]
        totals = [sum(scores[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _run(
        self, sequences: list[Sequence], description: str, disable_tqdm: bool
    ) -> Iterator[tuple[int, list[Stride]]]:
        """Each sequence's number and strides, as they finish."""
        engine = self.model.engine
        strides: dict[Sequence, list[Stride]] = {sequence: [] for sequence in sequences}
        numbers = {sequence: number for number, sequence in enumerate(sequences)}
        try:
            for sequence in sequences:
                engine.add(sequence)
            with tqdm(total=len(sequences), desc=description, disable=disable_tqdm) as bar:
                while engine.scheduler.has_work:
                    for sequence, event in engine.step():
                        if isinstance(event, Exception):
                            raise event
                        strides[sequence].append(event)
                        if event.finish_reason:
                            bar.update()
                            yield numbers[sequence], strides.pop(sequence)
        finally:
            engine.reset()

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into its results, besides the arguments."""
        backend = self.model.engine.forward.backend
        return {
            "decoder": self.decode.decoder,
            "model_fingerprint": self.model.target.fingerprint,
            "model_description": self.model.target.description,
            "tokens": self.stats.tokens,
            "forwards": self.stats.forwards,
            "tokens_per_forward": self.stats.tokens_per_forward,
            "path": path_in_words(backend, self.stats.forwards, self.stats.own_forwards, answers=0),
        }


def _max_sequences(batch_size: Any, max_batch_size: Any) -> int:
    """Maximum number of sequences in a step; those that do not fit into the cache wait."""
    if batch_size == _AUTO_BATCH:
        return max_batch_size or MAX_SEQUENCES
    most = 1 if batch_size is None else batch_size
    if isinstance(most, str) and most.isdecimal():
        most = int(most)
    if not isinstance(most, int) or most < 1:
        raise InputError(f"batch_size must be a whole number of at least 1, or {_AUTO_BATCH}, not {batch_size!r}")
    return most


def _params(settings: dict[str, Any]) -> SamplingParams:
    """Converts lm-eval's settings for sampling and stopping to ours."""
    asked: dict[str, Any] = dict(normalize_gen_kwargs(settings, _DEFAULT_ANSWER))
    stop = tuple(text for text in asked.pop("until") if text)
    max_tokens = asked.pop("max_gen_toks")
    # Greedy tasks set filters, too, which have no effect without sampling.
    is_sampled = asked.pop("do_sample") and asked.get("temperature", 0) > 0
    unknown = [name for name in asked if name not in _SAMPLING]
    if unknown:
        known = ("until", "max_gen_toks", "do_sample", *_SAMPLING)
        raise InputError(f"gen_kwargs: there is no {unknown[0]!r} here: {', '.join(known)} are known")
    if not is_sampled:
        penalty = asked.get("repetition_penalty", 1.0)
        return SamplingParams(max_tokens=max_tokens, stop=stop, repetition_penalty=penalty)
    # The seed is from Python's own generator, which lm-eval's --seed sets: repeats of a request differ, runs do not.
    return SamplingParams(max_tokens=max_tokens, stop=stop, seed=random.getrandbits(53), **asked)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def main() -> None:
    """lm-eval's command line, with `--model stridelm` registered."""
    try:
        cli_evaluate()
    except InputError as error:
        print(f"stridelm-lm-eval: {error}", file=sys.stderr)
        sys.exit(2)


# By its name, not by the class: if run with `python -m`, this module is loaded twice.
if NAME not in model_registry:
    model_registry.register(NAME, target="stridelm.bench.lm_eval:StrideLM")

if __name__ == "__main__":
    main()
