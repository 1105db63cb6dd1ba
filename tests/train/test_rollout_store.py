"""Rollouts on disk: what the teacher is asked, what is stored and found again, and prompts that a model makes up."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from assembly import assembled
from command_line import Call, assert_refused
from stridelm import InputError, LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.models.encode import Prompt
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import PLAIN
from stridelm.train import rollouts
from stridelm.train.rollout_engine import RolloutEngine
from stridelm.train.rollouts import Rollouts, RolloutStore, Text
from stridelm.train.settings import TrainSettings
from tiny import CONTEXT, EOS, byte_tokenizer, save_tiny
from training import QUESTIONS, SETTINGS, contents, options

Make = Callable[..., Rollouts]
FIVE = QUESTIONS[:5]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]


@pytest.fixture
def make(trainable: Callable[..., Checkpoint], tmp_path: Path) -> Make:
    """The rollouts of a tiny model in a folder."""

    def run(
        prompts: list[Any] = FIVE, folder: str = "rollouts", model: Checkpoint | None = None, **settings: Any
    ) -> Rollouts:
        lines = [PromptLine(f"line {number}", prompt) for number, prompt in enumerate(prompts, 1)]
        chosen = TrainSettings(**SETTINGS | settings)
        store = RolloutStore(tmp_path / folder, model or trainable(), lines, chosen, lambda what, done, of: None)
        return store.make()

    return run


@pytest.fixture
def model(tiny: Callable[..., Checkpoint]) -> LanguageModel:
    return assembled(tiny(), None, LoadSettings(cache_tokens=4096))


def said(texts: list[Text]) -> list[tuple[int, ...]]:
    return [tuple(text.tokens.tolist()) for text in texts]


def written_by(model: LanguageModel, prompt: Prompt, tokens: int, **params: Any) -> tuple[int, ...]:
    """A prompt and the answer of the serving engine."""
    answer = model.generate(prompt, SamplingParams(max_tokens=tokens, **params), decoder=PLAIN)
    return *model.encode(prompt), *answer.token_ids


# What the teacher is asked


def test_greedy_answers(make: Make, model: LanguageModel) -> None:
    made = make(greedy_share=1.0)
    assert len(made.held_out) == 1
    assert sorted(said(made.train + made.held_out)) == sorted(written_by(model, prompt, 16) for prompt in FIVE)


def test_sampled_answers_and_greedy_ones_to_measure_on(make: Make, model: LanguageModel) -> None:
    made = make(greedy_share=0.0, answers=2, seed=3, temperature=0.7)
    (held_out,) = said(made.held_out)
    (number,) = [number for number, prompt in enumerate(FIVE) if written_by(model, prompt, 16) == held_out]
    assert said(made.train) == [
        written_by(model, prompt, 16, temperature=0.7, seed=3 * 2**32 + 2 * index + which)
        for index, prompt in enumerate(FIVE)
        for which in range(2)
        if index != number
    ]


def test_the_largest_seed(make: Make) -> None:
    assert len(make(greedy_share=0.0, seed=2**30).train) == 4


def test_the_share_of_greedy_answers(make: Make, model: LanguageModel) -> None:
    prompts = [f"Number {number}?" for number in range(50)]
    greedy = {written_by(model, prompt, 8) for prompt in prompts}
    for share, least, most in ((0.0, 0, 0), (0.3, 6, 20), (0.7, 24, 40), (1.0, 48, 48)):
        made = make(prompts, f"share {share}", greedy_share=share, answer_tokens=8, rollout_batch=16)
        assert set(said(made.held_out)) <= greedy
        assert least <= sum(text in greedy for text in said(made.train)) <= most


def test_a_seed_gives_the_same_rollouts(make: Make) -> None:
    made = {folder: make(folder=folder, seed=seed, greedy_share=0.0) for folder, seed in (("a", 1), ("b", 1), ("c", 2))}
    assert said(made["a"].train) == said(made["b"].train) != said(made["c"].train)


def test_long_answers_end_with_the_context(make: Make, model: LanguageModel) -> None:
    prompts = [FIVE[0], "long " * 80]
    made = make(prompts, greedy_share=1.0, answer_tokens=300)
    texts = sorted(said(made.train + made.held_out))
    assert texts == sorted(written_by(model, prompt, 300) for prompt in prompts)
    assert max(map(len, texts)) == CONTEXT


def test_kinds_of_prompts(make: Make, model: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(entry) for entry in ({"question": "Two?"}, {"messages": CHAT})))
    prompts = ["Plain", *(line.prompt for line in read_prompts(file))]
    made = make(prompts, greedy_share=1.0)
    assert sorted(said(made.train + made.held_out)) == sorted(written_by(model, prompt, 16) for prompt in prompts)
    assert [line.prompt for line in read_prompts(tmp_path / "rollouts/prompts.jsonl")] == prompts


# What is stored and found again


def test_what_is_there_is_not_made_again(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, before = make(), contents(tmp_path)
    monkeypatch.delattr(rollouts, "RolloutEngine")
    again = make(rank=7, rollout_batch=2)
    assert (said(again.train), said(again.held_out)) == (said(first.train), said(first.held_out))
    assert again.manifest == first.manifest
    assert contents(tmp_path) == before


def test_an_interrupted_run_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(QUESTIONS, "whole")
    monkeypatch.setattr(rollouts, "_PART", 2)
    run, answered = RolloutEngine.run, []

    def interrupted(self: RolloutEngine, prompts: Iterator[Any]) -> Iterator[tuple[int, list[int]]]:
        for answer in run(self, prompts):
            answered.append(answer)
            if len(answered) == 6:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(RolloutEngine, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(QUESTIONS)
    made = make(QUESTIONS)
    assert len(answered) == 6 + len(QUESTIONS) - 4, "four answers were on the disk"
    assert (said(made.train), said(made.held_out)) == (said(whole.train), said(whole.held_out))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answer_tokens": 8}, r"answer_tokens \(16\)"),
        ({"seed": 1, "answers": 2}, r"answers \(1\), seed \(0\)"),
        ({"self_prompts": 3}, r"self_prompts \(0\)"),
        ({"prompts": QUESTIONS[:4]}, "settings: the prompts. "),
        ({"prompts": ["Other?", *FIVE[1:]]}, "settings: the prompts. "),
    ],
)
def test_other_rollouts_are_refused(change: dict[str, Any], words: str, make: Make, tmp_path: Path) -> None:
    make()
    before = contents(tmp_path)
    with pytest.raises(InputError, match=words) as refused:
        make(**change)
    assert str(refused.value).startswith(f"{tmp_path}/rollouts: ")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["manifest.json", "prompts.jsonl", "answers-00000.safetensors"])
def test_damaged_files(name: str, make: Make, tmp_path: Path) -> None:
    make()
    file = tmp_path / "rollouts" / name
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=name):
        make()


def test_answers_of_something_else(make: Make, tmp_path: Path) -> None:
    make()
    file = tmp_path / "rollouts/answers-00000.safetensors"
    one = torch.ones(1, dtype=torch.int32)
    for tensors in (
        {"weight": one},
        {"numbers": one, "lengths": 2 * one, "tokens": one},
        {"numbers": torch.cat([one, one]), "lengths": one, "tokens": one},
        {"numbers": 100 * one, "lengths": one, "tokens": one},
    ):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)
        with pytest.raises(InputError, match="delete it") as refused:
            make()
        assert str(refused.value).startswith(f"{file}: ")


def test_a_deleted_part_is_written_again(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_PART", 2)
    first = make()
    (tmp_path / "rollouts/answers-00000.safetensors").unlink()
    before = contents(tmp_path)
    again = make()
    assert (said(again.train), said(again.held_out)) == (said(first.train), said(first.held_out))
    assert contents(tmp_path).items() >= before.items(), "what was there is untouched"
    assert contents(tmp_path).keys() - before.keys() == {"rollouts/answers-00003.safetensors"}


def test_two_runs_share_rollouts(train: Call, tmp_path: Path) -> None:
    short = options(rollouts="shared", steps=2, warmup=0)
    assert train(*short).status == 0
    before = contents(tmp_path / "shared")
    assert train(*short, "--out", "second", "--rank", "3").status == 0
    assert contents(tmp_path / "shared") == before
    assert not Path("second/rollouts").exists()
    refused = train(*short, "--out", "third", "--answer-tokens", "8")
    assert_refused(refused, "shared: ", "answer_tokens (16)", "--rollouts")
    assert contents(tmp_path / "shared") == before
    assert not Path("third").exists()


# Prompts that the model makes up


def save_talker(folder: Path, chances: dict[str, float]) -> Path:
    """A tiny model that says each of these tokens with its own chance, whatever was said before."""
    network = AutoModelForCausalLM.from_pretrained(save_tiny(folder))
    with torch.no_grad():
        # One part of the hidden state outgrows all others, so that it is the same in every row.
        network.model.embed_tokens.weight[:, 0] = 100
        network.lm_head.weight.zero_()[:, 0] = -20
        for token, chance in chances.items():
            row = byte_tokenizer().convert_tokens_to_ids(token)
            network.lm_head.weight[row, 0] = torch.tensor(chance).log() / network.config.hidden_size**0.5
    network.save_pretrained(folder)
    return folder


SPACE = "Ġ"
"""As the tokenizer spells it."""
SELF: dict[str, Any] = {"self_prompts": 12, "prompt_tokens": 40, "openings": 0.0, "rollout_batch": 8}


def load(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder), LoadSettings(device="cpu"), trainable=True)


def prompts_in(folder: Path) -> list[Any]:
    return [line.prompt for line in read_prompts(folder / "prompts.jsonl")]


def test_a_model_prompts_itself(train: Call, make: Make, tmp_path: Path) -> None:
    folder = save_talker(tmp_path / "talker", {"a": 0.25, "b": 0.2, "c": 0.2, SPACE: 0.3, EOS: 0.05})
    run = train("--model", folder, *options(**SELF, steps=2, warmup=0), with_questions=False)
    assert run.status == 0
    prompts = prompts_in(tmp_path / "run/rollouts")
    assert len(prompts) == 12
    assert all(len(prompt.split()) >= 3 and set(prompt) <= set("abc ") for prompt in prompts)
    assert all(len(prompt) < 40 for prompt in prompts), "those that were cut off are dropped"
    assert json.loads(Path("run/train.json").read_text())["data"]["settings"]["self_prompts"] == 12
    assert "12 made up" in Path("run/README.md").read_text()
    make(QUESTIONS, "both", load(folder), **SELF)
    assert prompts_in(tmp_path / "both") == [*QUESTIONS, *prompts]


def test_making_up_goes_on_where_it_was_interrupted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(save_talker(tmp_path / "talker", {"a": 0.3, "b": 0.2, SPACE: 0.35, EOS: 0.15}))
    make([], "whole", model, **SELF)
    made_up, rounds = rollouts.made_up, iter(range(1, 100))

    def interrupted(*arguments: Any) -> Iterator[str]:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        return made_up(*arguments)

    monkeypatch.setattr(rollouts, "made_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make([], "again", model, **SELF)
    make([], "again", model, **SELF)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_near_duplicates_are_dropped(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ["Name 3 large animals.", "name 5 large animals!", "Write a short poem."]
    rounds = iter([first, ["Write a short poem?", "Why is the sky blue?", "Name 3 large animals."]])
    monkeypatch.setattr(rollouts, "made_up", lambda *arguments: iter(next(rounds)))
    make([], self_prompts=3)
    assert prompts_in(tmp_path / "rollouts") == [first[0], first[2], "Why is the sky blue?"]


def test_a_model_that_makes_up_nothing(train: Call, tmp_path: Path) -> None:
    silent = save_talker(tmp_path / "silent", {EOS: 1.0})
    endless = save_talker(tmp_path / "endless", {"a": 0.5, SPACE: 0.5})
    before = contents(tmp_path)
    for model, more in ((silent, ()), (endless, ("--rollouts", "elsewhere"))):
        run = train("--model", model, *options(**SELF), *more, with_questions=False)
        assert run.status == 2
        assert run.err.splitlines()[-1].startswith("stridelm: the model made up 0 prompts and then no new ones: ")
        assert contents(tmp_path) == before


def test_a_model_without_a_chat_template_continues_text(make: Make, tmp_path: Path) -> None:
    folder = save_talker(tmp_path / "talker", {"a": 0.3, "b": 0.3, SPACE: 0.4})
    (folder / "chat_template.jinja").unlink()
    made = make([], "rollouts", load(folder), **SELF)
    prompts = prompts_in(tmp_path / "rollouts")
    assert len({len(prompt) for prompt in prompts}) > 4, "beginnings of many lengths"
    assert sorted(text.prompt_length for text in made.train + made.held_out) == sorted(map(len, prompts))


def test_made_up_prompts_leave_room_for_an_answer(make: Make, tmp_path: Path) -> None:
    folder = save_talker(tmp_path / "talker", {"a": 0.3, "b": 0.3, SPACE: 0.36, EOS: 0.04})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 48}))
    made = make([], "rollouts", load(folder), **SELF | {"prompt_tokens": 384})
    assert max(text.prompt_length for text in made.train) in range(36, 45)
    assert max(len(text.tokens) for text in made.train) == 48
