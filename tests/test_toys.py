"""Toy prompts: where a text is easy to foresee strides are long, and it is the text of plain decoding all the same."""

from dataclasses import dataclass

import pytest

from assembly import assembled
from reference import NEAR_TIE, first_departure, replay
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.decode.cost import Cost
from stridelm.models.builtin import ensure_builtin
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings, LoadSettings
from stridelm.types import Result
from tally import figures
from tiny import plain_network


@dataclass(frozen=True)
class Text:
    prompt: str
    holds: str = ""
    """Part of the answer: a model that does not play the game shows nothing."""
    raw: bool = True
    tokens: int = 96


TOYS = {
    "counting to fifty": Text("Count to fifty: 1, 2, 3, 4, 5, 6, 7, 8,", " 9, 10, 11, 12, 13", tokens=168),
    "a phrase again and again": Text(
        'Say "the cat sat on the mat" again and again: the cat sat on the mat, the cat sat on the mat, the cat sat on '
        "the mat,",
        "the cat sat on the mat, " * 9,
        raw=False,
    ),
    "a JSON skeleton": Text(
        '[\n  {\n    "id": 1,\n    "name": "user1",\n    "active": true\n  },\n'
        '  {\n    "id": 2,\n    "name": "user2",\n    "active": true\n  },\n  {\n    "id": 3,',
        '  {\n    "id": 5,\n    "name": "user5",\n    "active": true\n  },\n',
    ),
}
PROSE = {
    "a story": Text("Tell a short story about a lighthouse keeper and a lost whale.", raw=False, tokens=64),
    "a description": Text("Describe a walk through an old town on a rainy evening.", raw=False, tokens=64),
}


@pytest.fixture(scope="module")
def model(builtin_checkpoint: Checkpoint, builtin_gate: TorchGate | None) -> LanguageModel:
    if builtin_gate is None:
        pytest.skip("this package comes without an adapter")
    model = assembled(builtin_checkpoint, None, LoadSettings(cache_tokens=4096), builtin_gate)
    # The planner decides by what a forward costs: by this, the same everywhere, and not by the mood of the machine.
    model.resources._cost = Cost(rows=(1, 64), seconds=(100.0, 160.0))
    return model


def decode(model: LanguageModel, settings: DecodeSettings, texts: dict[str, Text]) -> dict[str, Result]:
    """All texts as one batch."""
    answers = {
        name: model.stream(text.prompt, SamplingParams(max_tokens=text.tokens), decoder=settings, raw=text.raw)
        for name, text in texts.items()
    }
    results = {name: answer.result() for name, answer in answers.items()}
    for name, result in results.items():
        figures[f"{settings.decoder}, {name}"] = result.stats.tokens_per_forward
        assert texts[name].holds in result.text
        assert_plain(model, texts[name], result)
    return results


def assert_plain(model: LanguageModel, text: Text, result: Result) -> None:
    """The tokens are those of plain decoding, up to a near-tie."""
    prompt, tokens = model.encode(text.prompt, raw=text.raw), list(result.token_ids)
    params = SamplingParams(max_tokens=text.tokens)
    decisions = replay(plain_network(str(ensure_builtin())), prompt, tokens, params, model.target.eos_ids)
    at = first_departure(decisions, tokens)
    assert at is None or decisions[at].margin < NEAR_TIE, f"{text.prompt}: token {at}"


def test_strides_are_long_where_the_text_is_easy_to_foresee(model: LanguageModel) -> None:
    assert model.gate is not None
    results = decode(model, DecodeSettings("self", k=model.gate.k), TOYS | PROSE)
    strides = {name: result.stats.tokens_per_forward for name, result in results.items()}
    prose = max(strides[name] for name in PROSE)
    assert prose > 1.3
    for name in TOYS:
        assert strides[name] > 2 * prose, f"{name}: {strides}"
    assert "48, 49, 50" in results["counting to fifty"].text


def test_look_up_strides_where_the_text_repeats_itself(model: LanguageModel) -> None:
    name = "a phrase again and again"
    (result,) = decode(model, DecodeSettings("ngram"), {name: TOYS[name]}).values()
    assert result.stats.tokens_per_forward > 4
    # What came behind the same words before: the phrase of seven tokens; and one of the model's own.
    assert max(len(stride.tokens) for stride in result.strides) == 8
