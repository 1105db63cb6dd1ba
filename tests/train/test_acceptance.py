"""How a conversion is measured: the walk, that the engine takes the same one, and the command."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stridelm
from assembly import assembled
from command_line import Call, assert_refused
from counting import Conversion, answered, counting_prompts
from every_node import self_at_every_node
from stridelm import LoadSettings, SamplingParams
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.models.adapter import save_adapter
from stridelm.train.acceptance import Measure, Summary, Tally, Walk, form_name, measure_forms, total
from stridelm.train.rollout_engine import RolloutPrompt
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import Form, MaskReader
from stridelm.train.students.student import Student
from stridelm.train.trainer import Trainer
from tiny import FAMILIES, load_tiny, random_adapter

Counting = Callable[..., Conversion]
TEXTS = ("abcabcabd abc", "The quick brown fox", "x", "counting 1 2 3 4 5 6 7")


def hits(*chains: str) -> np.ndarray:
    return np.array([[letter == "#" for letter in chain] for chain in chains])


def play(hits_AK: np.ndarray, prompt_length: int) -> Tally:
    """The walk over an answer with a chain off each of its places, the first off the prompt's last token."""
    walk = Walk(prompt_length, *hits_AK.shape)
    while not walk.is_over:
        walk.step(hits_AK[walk.anchor - (prompt_length - 1)])
    return walk.tally


@pytest.mark.parametrize(
    ("chains", "forwards", "reached", "accepted"),
    [
        (["..", "..", "..", ".."], 4, [2, 0], [0, 0]),
        (["##", "##", "##", "##"], 2, [1, 1], [1, 1]),
        (["##", "##", "##", "##", "##"], 3, [1, 1], [1, 1]),
        (["#.", "..", ".#", "##", "..", ".."], 4, [3, 1], [2, 0]),
        (["##"], 1, [0, 0], [0, 0]),
        (["##", "##"], 2, [0, 0], [0, 0]),
    ],
    ids=[
        "nothing is right: the last token needs no draft",
        "all is right: one token, then three",
        "all is right, and one token is left",
        "a hit behind a miss is of no use",
        "the prompt's forward writes the only token",
        "the last token is always the forward's own",
    ],
)
def test_walks(chains: list[str], forwards: int, reached: list[int], accepted: list[int]) -> None:
    tally = play(hits(*chains), 10)
    assert (tally.texts, tally.tokens, tally.forwards) == (1, len(chains), forwards)
    assert (tally.reached, tally.accepted) == (reached, accepted)


@given(st.integers(1, 12).flatmap(lambda size: st.lists(st.tuples(*[st.booleans()] * 3), min_size=size, max_size=size)))
def test_a_walk_takes_what_is_right_and_one_token_more(chains: list[tuple[bool, ...]]) -> None:
    written = forwards = 1
    while written < len(chains):
        right = [*chains[written - 1], False].index(False)
        written = min(written + right + 1, len(chains))
        forwards += 1
    tally = play(np.array(chains), 5)
    assert (tally.tokens, tally.forwards) == (len(chains), forwards)
    assert tally.tokens == tally.forwards + sum(tally.accepted)
    assert all(taken <= seen for taken, seen in zip(tally.accepted, tally.reached, strict=True))


def test_contexts_lie_in_buckets_by_powers_of_two() -> None:
    tally = play(hits(*["."] * 5), 126)
    assert dict(tally.by_context) == {128: [3, 3], 256: [2, 2]}, "the context of a forward is what lies before it"
    assert dict(play(hits(".", "."), 1).by_context) == {128: [2, 2]}
    assert dict(play(hits(".", "."), 9000).by_context) == {16384: [2, 2]}


def test_tallies_add_up() -> None:
    parts = [play(hits("##", "##", "##", "##"), 100), play(hits(".", "#", "."), 300), Tally()]
    whole = total(parts)
    assert (whole.texts, whole.tokens, whole.forwards) == (2, 7, 5)
    assert (whole.reached, whole.accepted) == ([2, 1], [1, 1])
    assert whole.acceptance == [0.5, 1.0]
    assert whole.tokens_per_forward == 7 / 5
    assert dict(whole.by_context) == {128: [4, 2], 512: [3, 3]}
    assert (Tally().tokens_per_forward, Tally().acceptance) == (0, [])


def measure_of(trainer: Trainer) -> Measure:
    assert trainer.conversion.measure is not None
    return trainer.conversion.measure


def tallies_of(measure: Measure, texts: list[Text]) -> list[Tally]:
    """In the texts' own order."""
    found = {id(text): tally for text, tally in measure(texts)}
    return [found[id(text)] for text in texts]


def assert_engine_walks_alike(
    model: LanguageModel,
    measure: Measure,
    prompts: list[RolloutPrompt],
    texts: list[Text],
    tree: int | None = None,
) -> list[Tally]:
    assert model.gate is not None
    tallies = tallies_of(measure, texts)
    for prompt, text, tally in zip(prompts, texts, tallies, strict=True):
        words = str(model.target.tokenizer.decode(list(prompt.tokens)))
        settings = self_at_every_node(model, model.gate.k, tree)
        result = model.generate(words, prompt.params, decoder=settings, raw=True)
        assert list(result.token_ids) == text.tokens[len(prompt.tokens) :].tolist()
        assert (result.stats.tokens, result.stats.forwards) == (tally.tokens, tally.forwards)
    return tallies


@pytest.fixture
def all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement chooses among the whole vocabulary."""
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):
        monkeypatch.setattr(f"stridelm.draft.grow.{name}", 10000)


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_takes_the_same_walk_with_a_random_adapter(
    family: str, trainable: Callable[..., Checkpoint], converted: Callable[..., tuple[Checkpoint, TorchGate]]
) -> None:
    target, gate = converted(family)
    checkpoint = trainable(family)
    model = assembled(target, None, LoadSettings(cache_tokens=4096), gate)
    prompts = [RolloutPrompt(tuple(model.encode(words, raw=True)), 16) for words in TEXTS]
    student = Student.of(checkpoint.network, random_adapter(target))
    measure = Measure(MaskReader(checkpoint.network, student))
    assert_engine_walks_alike(model, measure, prompts, answered(checkpoint, prompts))


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_engine_takes_the_same_walk_with_a_trained_adapter(family: str, counting: Counting) -> None:
    """What it can foresee and what it cannot; answers that end by themselves, and answers that are cut off."""
    conversion = counting(family)
    target = load_tiny(Path(conversion.checkpoint.name))
    model = assembled(target, None, LoadSettings(cache_tokens=4096), attach(target.network, conversion.adapter))
    prompts = [*counting_prompts(6), *counting_prompts(6, 8)]
    prompts += [RolloutPrompt(tuple(model.encode(words)), 12) for words in TEXTS]
    texts = answered(conversion.checkpoint, prompts)
    whole = total(assert_engine_walks_alike(model, measure_of(conversion.trainer), prompts, texts))
    assert whole.tokens_per_forward > 1.5
    assert 0 < whole.accepted[0] < whole.reached[0] and whole.accepted[-1] > 0
    assert {text.tokens[-1] in target.eos_ids for text in texts} == {True, False}


def seeded(prompts: list[RolloutPrompt], temperature: float) -> list[RolloutPrompt]:
    return [replace(prompt, temperature=temperature, seed=2**40 + number) for number, prompt in enumerate(prompts)]


def reader_of(conversion: Conversion, *forms: Form) -> MaskReader:
    checkpoint = conversion.checkpoint
    student = Student.of(checkpoint.network, conversion.adapter)
    return MaskReader(checkpoint.network, student, forms=forms, ends=checkpoint.eos_ids)


@pytest.mark.parametrize(("temperature", "tree"), [(0.0, 4), (0.0, 9), (0.7, None), (0.7, 6), (1.5, None), (1.5, 12)])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_engine_takes_the_same_walk_in_trees_and_with_seeds(
    family: str, temperature: float, tree: int | None, counting: Counting
) -> None:
    """With the candidates that the engine has."""
    conversion = counting(family)
    target = load_tiny(Path(conversion.checkpoint.name))
    model = assembled(target, None, LoadSettings(cache_tokens=4096), attach(target.network, conversion.adapter))
    prompts = [*counting_prompts(4), *counting_prompts(4, 8)]
    prompts += [RolloutPrompt(tuple(model.encode(words)), 12) for words in TEXTS]
    prompts = seeded(prompts, temperature)
    texts = answered(conversion.checkpoint, prompts)
    measure = Measure(reader_of(conversion, tree))
    whole = total(assert_engine_walks_alike(model, measure, prompts, texts, tree))
    assert 0 < whole.accepted[0] < whole.reached[0]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_forms_side_by_side_are_measured_as_each_alone(temperature: float, counting: Counting) -> None:
    conversion = counting()
    texts = answered(conversion.checkpoint, seeded(counting_prompts(8, 20), temperature))
    texts = [replace(text, category="ab"[number % 2]) for number, text in enumerate(texts)]
    student = Student.of(conversion.checkpoint.network, conversion.adapter)
    found = measure_forms(conversion.checkpoint, student, {"some": texts[:5], "others": texts[5:]}, trees=(2, 40))
    assert list(found) == ["some", "others"]
    for name, part in (("some", texts[:5]), ("others", texts[5:])):
        for form in (None, 2, 40):
            tallies = tallies_of(Measure(reader_of(conversion, form)), part)
            assert found[name][form_name(form)] == Summary.of(zip(part, tallies, strict=True)).entry
    forwards = [found["some"][name]["forwards"] for name in ("tree of 2 rows", "chain", "tree of 40 rows")]
    assert forwards == sorted(forwards, reverse=True)


def test_what_comes_before_a_loop_is_counted_apart(counting: Counting) -> None:
    """Steps whose first token lies before it, with all of their tokens."""
    walk = Walk(10, 8, 2, 3)
    for _ in range(3):
        walk.step(np.array([True, False]))  # at 0, 1 and 3: two tokens each after the first
    assert walk.tally.before_loops == [3, 2] and walk.tally.loops == 1
    assert total([walk.tally, play(hits(".", "."), 5)]).before_loops == [5, 4]
    text = answered(counting().checkpoint, counting_prompts(1, 3))[0]
    looping = replace(text, tokens=np.concatenate([text.tokens, np.tile(text.tokens[-2:], 9)]))
    (tally,) = tallies_of(Measure(reader_of(counting(), None)), [looping])
    assert tally.loops == 1 and 0 < tally.before_loops[0] < tally.tokens


def test_it_does_not_matter_which_texts_are_measured_together(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = counting().trainer
    together = tallies_of(measure_of(trainer), trainer.held_out)
    for tokens in (1, 100):
        monkeypatch.setattr("stridelm.train.acceptance._CACHED_TOKENS", tokens)
        assert tallies_of(measure_of(trainer), trainer.held_out) == together


@pytest.fixture
def acceptance(call: Call) -> Call:
    """`stridelm acceptance` with these arguments."""
    return lambda *arguments: call("acceptance", "--device", "cpu", *arguments)


CATEGORIES = {"ABCD": "ones", "BDFH": "twos", "EFGHIJK": "ones", "CE": None, "ACEGI": "twos"}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    lines = [{"prompt": words} | ({"category": kind} if kind else {}) for words, kind in CATEGORIES.items()]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


@pytest.fixture
def measured(counting: Counting, questions: Path, tmp_path: Path) -> list[object]:
    """The arguments of a measurement of a trained adapter."""
    save_adapter(tmp_path / "adapter", counting().adapter)
    model = counting().checkpoint.name
    return ["--model", model, "--adapter", tmp_path / "adapter", "--prompts", questions, "--max-tokens", 20]


@pytest.mark.usefixtures("all_candidates")
def test_the_command_counts_what_the_engine_needs(
    acceptance: Call, measured: list[object], counting: Counting, tmp_path: Path
) -> None:
    done = acceptance(*measured, "--json")
    assert done.status == 0
    (told,) = done.objects
    model = stridelm.load(
        counting().checkpoint.name,
        adapter=tmp_path / "adapter",
        settings=LoadSettings(device="cpu", cache_tokens=1024),
    )
    params = SamplingParams(max_tokens=20)
    settings = self_at_every_node(model, 4)
    stats = {words: model.generate(words, params, decoder=settings).stats for words in CATEGORIES}

    def expected(*kinds: str | None) -> dict[str, Any]:
        chosen = [stats[words] for words, kind in CATEGORIES.items() if kind in kinds]
        tokens, forwards = sum(each.tokens for each in chosen), sum(each.forwards for each in chosen)
        return {
            "prompts_measured": len(chosen),
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_forward": round(tokens / forwards, 4),
        }

    def counts(entry: dict[str, Any]) -> dict[str, Any]:
        assert len(entry["acceptance_by_depth"]) == 5  # masks and tail heads
        return {name: entry[name] for name in expected("ones")}

    assert counts(told) == expected("ones", "twos", None)
    assert {kind: counts(entry) for kind, entry in told["categories"].items()} == {
        kind: expected(kind) for kind in ("ones", "twos")
    }
    mean = sum(expected(kind)["tokens_per_forward"] for kind in ("ones", "twos")) / 2
    assert told["mean_over_categories"] == pytest.approx(mean, abs=1e-4)
    whole = expected("ones", "twos", None)
    assert told["context"] == {"<=128": {name: whole[name] for name in ("tokens", "forwards", "tokens_per_forward")}}


def test_the_batch_changes_nothing_and_the_sequential_head_something(acceptance: Call, measured: list[object]) -> None:
    told = [
        acceptance(*measured, "--json", *more).objects[0]
        for more in ((), ("--batch", 1), ("--batch", 2), ("--no-sequential-head",))
    ]
    assert told[0] == told[1] == told[2]
    assert (told[0]["sequential_head"], told[3]["sequential_head"]) == (True, False)
    assert told[0]["tokens"] == told[3]["tokens"]
    assert told[0]["acceptance_by_depth"] != told[3]["acceptance_by_depth"]


def test_the_table_shows_what_the_object_holds(acceptance: Call, measured: list[object]) -> None:
    (told,) = acceptance(*measured, "--json").objects
    done = acceptance(*measured)
    assert done.status == 0
    rows = [line.split() for line in done.out.splitlines()]
    for name, entry in (*told["categories"].items(), ("all", told)):
        rates = [f"{rate:.2f}" for rate in entry["acceptance_by_depth"]]
        before = entry["before_loops"]["tokens_per_forward"]
        assert [name, f"{entry['tokens_per_forward']:.3f}", f"{before:.3f}", *rates] in rows
    means = [f"{told[name]:.3f}" for name in ("mean_over_categories", "mean_over_categories_before_loops")]
    assert ["mean", "over", "categories", *means] in rows
    assert ["<=128", f"{told['tokens_per_forward']:.3f}", str(told["tokens"])] in rows


def test_the_command_measures_trees_and_seeded_answers(acceptance: Call, measured: list[object]) -> None:
    greedy, tree, wide, drawn, again, other = (
        acceptance(*measured, "--json", *more).objects[0]
        for more in (
            (),
            ("--tree", 2),
            ("--tree", 30),
            ("--temperature", 0.9),
            ("--temperature", 0.9, "--seed", 0, "--batch", 2),
            ("--temperature", 0.9, "--seed", 1, "--tree", 30),
        )
    )
    assert greedy["tokens"] == tree["tokens"] == wide["tokens"] and (tree["tree"], greedy["tree"]) == (2, None)
    assert wide["forwards"] <= greedy["forwards"] <= tree["forwards"]
    assert drawn == again and (drawn["seed"], greedy["seed"]) == (0, None)
    assert drawn["context"] != greedy["context"] != other["context"] != drawn["context"]


def test_what_cannot_be_measured_is_told_in_one_line(
    acceptance: Call, measured: list[object], tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    long = tmp_path / "long.txt"
    long.write_text("fits\n" + "x" * 600 + "\n")
    model = tiny_folder()
    cases: list[tuple[list[object], str]] = [
        (["--model", model, "--prompts", measured[5]], "name one with --adapter"),
        ([*measured, "--adapter", tmp_path / "nothing"], "not a StrideLM adapter"),
        ([*measured, "--prompts", tmp_path / "nothing.jsonl"], "nothing.jsonl: cannot be read"),
        ([*measured, "--prompts", long], "long.txt, line 2"),
        ([*measured, "--max-tokens", 1], "--max-tokens must be between 2"),
        ([*measured, "--batch", 0], "--batch must be between 1"),
        ([*measured, "--batch", 5000], "--batch must be between 1 and 4096"),
        ([*measured, "--dtype", "int8"], "no dtype 'int8'"),
        ([*measured, "--tree", 1], "--tree must be between 2 and 64 rows"),
        ([*measured, "--tree", 65], "--tree must be between 2 and 64 rows"),
        ([*measured, "--temperature", -1], "temperature must be 0 (greedy)"),
        ([*measured, "--seed", 1], "--seed: greedy answers are not drawn"),
        ([*measured, "--temperature", 1, "--seed", -1], "--seed must be between 0 and"),
        (["--draft-model", model, "--prompts", measured[5], "--tree", 4], "--tree: a draft model writes chains"),
        (["--draft-model", model, "--prompts", measured[5], "--temperature", 1], "measured on greedy answers only"),
    ]
    for arguments, said in cases:
        assert_refused(acceptance(*arguments), said)
