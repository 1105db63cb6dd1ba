"""Steps that the device runs by itself, against plain decoding one token at a time: in Triton's interpreter."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from interpreted import DEVICE, load_gpu
from reference import NEAR_TIE, first_departure, reference
from stridelm import sampling
from stridelm.arrays import signed
from stridelm.backends.gpu.forward import GpuForward
from stridelm.backends.gpu.layers import TAIL, VOCABULARY_TILE, Scores
from stridelm.backends.gpu.sampling_kernels import Drawing, Kind, gumbel, key_at
from stridelm.backends.gpu.stepper import GpuStepper
from stridelm.backends.gpu.template import Template
from stridelm.cache.kv_cache import Table
from stridelm.decode.autoregressive import Autoregressive
from stridelm.draft import grow
from stridelm.draft.grow import Chain, TreeGrower
from stridelm.engine.engine import Engine
from stridelm.engine.step_kind import ENGINE_FIELDS
from stridelm.layout import lay_out, make_block
from stridelm.params import SamplingParams
from stridelm.stepper import Continuation
from stridelm.types import ROOT, Sequence, Stride
from tiny import byte_tokenizer, load_tiny, plain_network, random_adapter

GREEDY = SamplingParams(max_tokens=8)
SAMPLED = SamplingParams(max_tokens=8, temperature=1.0, seed=1)
FILTERED = SamplingParams(max_tokens=8, temperature=1.5, top_k=40, top_p=0.9, min_p=0.01, seed=5)
SETTINGS = (
    GREEDY,
    SAMPLED,
    SamplingParams(max_tokens=8, temperature=0.7, top_k=20, seed=2**64 - 1),
    SamplingParams(max_tokens=8, temperature=1.5, top_p=0.8, seed=3),
    SamplingParams(max_tokens=8, temperature=2.0, min_p=0.05, seed=4),
    FILTERED,
)
PLAIN = Template.chain(0)
CHAIN = Template.chain(2)
TREE = Template((ROOT, 0, 0, 2, 1), 2)
"""0-1-4 and 0-2-3."""
LARGE = Template((ROOT, 0, 0, 1, 1, 2, 3, 0), 3)
"""0-1-3-6, 0-1-4, 0-2-5, 0-7."""


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[..., Path]) -> Path:
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def forward(folder: Path) -> GpuForward:
    return load_gpu(folder, random_adapter(load_tiny(folder)), cache_tokens=2048)[1]


@dataclass
class Text:
    """What one place writes."""

    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)

    @property
    def whole(self) -> list[int]:
        return self.prompt + self.tokens


def texts_of(*params: SamplingParams) -> list[Text]:
    """Prompts of several lengths, choices of several numbers."""
    random = np.random.default_rng(0)
    return [
        Text(random.integers(0, 256, 5 + 7 * place).tolist(), own, choice=place) for place, own in enumerate(params)
    ]


def make_stepper(forward: GpuForward, template: Template, places: int, ends: frozenset[int]) -> GpuStepper:
    return GpuStepper(forward.network, forward.run_layers, template, places, forward.pages, ends)


def seat(forward: GpuForward, stepper: GpuStepper, texts: list[Text]) -> list[Table]:
    """Read the prompts and let the texts begin."""
    tables = [forward.cache.open(len(text.prompt) + text.params.max_tokens + TAIL) for text in texts]
    for place, (text, table) in enumerate(zip(texts, tables, strict=True)):
        read(forward, table, text.prompt[:-1])
        begun = Continuation(
            cached=len(text.prompt) - 1,
            pending=text.prompt[-1],
            room=text.params.max_tokens,
            blocks=table.blocks,
            params=text.params,
            seed=text.params.seed or 0,
            choice=text.choice,
        )
        stepper.begin(place, begun)
    for place in range(len(texts), stepper.places):
        stepper.end(place)
    return tables


def read(forward: GpuForward, table: Table, tokens: list[int]) -> None:
    forward(lay_out([make_block(0, tokens, reads_logits=False)]), [table])
    forward.cache.keep(table, range(len(tokens)))


def step(stepper: GpuStepper, texts: list[Text]) -> None:
    stepper.launch()
    for text, emitted in zip(texts, stepper.collect(), strict=False):
        text.tokens += emitted.tokens
        text.confidence += emitted.confidence
        text.strides.append(len(emitted.tokens))


def plant(stepper: GpuStepper, place: int, path: list[int], right: list[int]) -> None:
    """Put drafts in the place of those that the masks gave: right ones along a path of nodes, as far as there are some,
    elsewhere ones that are none."""
    ids = [-1] * stepper.drafts
    for node, token in zip(path, right, strict=False):
        ids[node - 1] = token
    first = place * stepper.template.nodes
    stepper.layout.ids_M[first + 1 : first + stepper.template.nodes] = torch.tensor(ids, dtype=torch.int32)


def check(folder: Path, texts: list[Text], ends: frozenset[int] = frozenset()) -> None:
    """That the texts are those of the reference, and that the model is as sure of them as it says."""
    network = plain_network(str(folder))
    for text in texts:
        decisions = reference(network, text.prompt, text.params, ends, choice=text.choice)
        departure = first_departure(decisions, text.tokens)
        assert departure is None or decisions[departure].margin < NEAR_TIE, (text.params, departure)
        with torch.inference_mode():
            logits = network(input_ids=torch.tensor([text.whole]), use_cache=False).logits[0, len(text.prompt) - 1 :]
        shares = logits.double().softmax(dim=-1)[range(len(text.tokens)), text.tokens]
        assert text.confidence == pytest.approx(shares.tolist(), rel=1e-3)


def expected(folder: Path, text: Text, ends: frozenset[int] = frozenset()) -> list[int]:
    decisions = reference(plain_network(str(folder)), text.prompt, text.params, ends, choice=text.choice)
    return [decision.token for decision in decisions]


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        pytest.param(PLAIN, [replace(params, max_tokens=4) for params in SETTINGS], id="plain", marks=pytest.mark.slow),
        pytest.param(CHAIN, [replace(params, max_tokens=3) for params in (GREEDY, SAMPLED, FILTERED)], id="chain"),
        pytest.param(LARGE, [GREEDY, SAMPLED, FILTERED], id="tree", marks=pytest.mark.slow),
    ],
)
def test_steps_write_what_plain_decoding_writes(
    template: Template, settings: list[SamplingParams], forward: GpuForward, folder: Path
) -> None:
    """Greedy and sampled places, with filters and without, in the same steps, one place being nobody's; the masks'
    own drafts."""
    texts = texts_of(*settings)
    stepper = make_stepper(forward, template, len(texts) + 1, frozenset())
    tables = seat(forward, stepper, texts)
    assert stepper.drawing.kind is Kind.FILTERED
    while any(len(text.tokens) < text.params.max_tokens for text in texts):
        step(stepper, texts)
    check(folder, texts)
    for table in tables:
        forward.cache.free(table)


def paths_of(template: Template) -> Iterator[list[int]]:
    """Every node's path from the root, in turn, without end."""
    for number in count():
        node, path = number % template.nodes, list[int]()
        while node > 0:
            path.append(node)
            node = template.parents[node]
        yield path[::-1]


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        pytest.param(CHAIN, [SAMPLED, FILTERED], id="chain", marks=pytest.mark.slow),
        pytest.param(TREE, [SAMPLED, GREEDY], id="tree"),
        pytest.param(
            LARGE, [replace(params, max_tokens=24) for params in SETTINGS[:4]], id="large", marks=pytest.mark.slow
        ),
    ],
)
def test_right_drafts_are_accepted_on_every_path(
    template: Template, settings: list[SamplingParams], forward: GpuForward, folder: Path
) -> None:
    texts = texts_of(*settings)
    stepper = make_stepper(forward, template, len(texts), frozenset())
    tables = seat(forward, stepper, texts)
    right = [expected(folder, text) for text in texts]
    paths, accepted = paths_of(template), set[int]()
    while any(len(text.tokens) < text.params.max_tokens for text in texts):
        wanted: list[int] = []
        for place, text in enumerate(texts):
            path, left = next(paths), right[place][len(text.tokens) :]
            plant(stepper, place, path, left)
            wanted.append(min(len(path) + 1, len(left)))
        step(stepper, texts)
        assert [text.strides[-1] for text in texts] == wanted
        accepted.update(wanted)
    assert accepted >= set(range(1, template.deepest + 2))
    check(folder, texts)
    for table in tables:
        forward.cache.free(table)


def test_texts_end_within_an_accepted_path(forward: GpuForward, folder: Path) -> None:
    """At an end-of-text token, or for lack of room; the others go on, and nothing is emitted behind an end."""
    settings = SAMPLED, SamplingParams(5), SamplingParams(7, 1.0, top_k=30, seed=3)
    open_ended = texts_of(*settings)
    end = expected(folder, open_ended[0])[1]
    ends = frozenset({end, 259})
    texts = texts_of(*settings)
    right = [expected(folder, text, ends) for text in texts]
    assert [len(tokens) for tokens in right] == [2, 5, 7], "the end is the first text's alone"
    stepper = make_stepper(forward, CHAIN, len(texts), ends)
    tables = seat(forward, stepper, texts)
    for _ in range(3):
        for place, text in enumerate(texts):
            plant(stepper, place, [1, 2], [*right[place], 0, 0][len(text.tokens) :])
        step(stepper, texts)
    assert [text.strides for text in texts] == [[2, 0, 0], [3, 2, 0], [3, 3, 1]]
    check(folder, texts, ends)
    for table in tables:
        forward.cache.free(table)


def test_what_an_ended_text_keeps_is_not_written_over(forward: GpuForward, folder: Path) -> None:
    """Its rows are run on until the host takes notice, and the cache may hand its blocks to others as a prefix."""
    (text,) = texts = texts_of(SamplingParams(3))
    right = expected(folder, text)
    stepper = make_stepper(forward, CHAIN, 1, frozenset())
    (table,) = seat(forward, stepper, texts)
    plant(stepper, 0, [1, 2], right)
    stepper.launch()
    kept = forward.cache.slots(table, 0, len(text.prompt) + 2)
    before = forward.memory.layers_L2SGD[:, :, kept].clone()
    stepper.launch()
    assert [len(each.tokens) for each in (*stepper.collect(), *stepper.collect())] == [3, 0]
    assert torch.equal(forward.memory.layers_L2SGD[:, :, kept], before)
    forward.cache.free(table)


def drafts_of_host(forward: GpuForward, text: Text, branches: int, depth: int) -> list[int]:
    """What the host drafts from the masks of the row that gave the text's last token."""
    table = forward.cache.open()
    read(forward, table, text.whole[:-2])
    block = make_block(len(text.whole) - 2, text.whole[-2:-1], anchors=[ROOT], masks=depth)
    (output,) = forward(lay_out([block]), [table])
    forward.cache.keep(table, [0])
    forward.cache.free(table)
    assert output.hidden_WC is not None
    chain = Chain(output.logits_WV[1:], output.hidden_WC[1:])
    sequence = Sequence(text.whole, text.params, Autoregressive(), frozenset(), 512, choice=text.choice)
    grower = TreeGrower("self", branches, forward.gate)
    (tree,) = grower.draft([sequence], [chain], depth=depth, floor=0.0)
    return list(tree.tokens)


def drafted(stepper: GpuStepper, place: int) -> list[int]:
    first = place * stepper.template.nodes
    return stepper.layout.ids_M[first + 1 : first + stepper.template.nodes].tolist()


def test_drafts_are_those_of_the_host(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise at the same positions. The host chooses among the likeliest tokens, the device among those
    that noise has made the best: both may choose among all here, so there are few."""
    folder = tiny_folder("llama", vocab_size=32, eos_token_id=0, pad_token_id=0)
    forward = load_gpu(folder, random_adapter(load_tiny(folder)), cache_tokens=2048)[1]
    for name in ("DRAFT_CANDIDATES", "GREEDY_CANDIDATES"):
        monkeypatch.setattr(grow, name, 32)
    texts = texts_of(GREEDY, SAMPLED, SamplingParams(8, 0.5, seed=12))
    for text in texts:
        text.prompt = [token % 32 for token in text.prompt]
    stepper = make_stepper(forward, CHAIN, len(texts), frozenset())
    assert stepper.draft_grower is not None
    stepper.draft_grower.candidates = 32
    tables = seat(forward, stepper, texts)
    step(stepper, texts)
    for place, text in enumerate(texts):
        assert drafted(stepper, place) == drafts_of_host(forward, text, 1, 2)
    for table in tables:
        forward.cache.free(table)


@pytest.mark.slow
def test_greedy_drafts_are_the_hosts_likeliest_by_rank(forward: GpuForward) -> None:
    texts = texts_of(GREEDY, GREEDY)
    stepper = make_stepper(forward, TREE, len(texts), frozenset())
    tables = seat(forward, stepper, texts)
    assert stepper.drawing.kind is Kind.GREEDY
    step(stepper, texts)
    for place, text in enumerate(texts):
        drafts = drafted(stepper, place)
        assert drafts[:2] == drafts_of_host(forward, text, 2, 1)
        assert [drafts[0], drafts[3]] == drafts_of_host(forward, text, 1, 2)
    for table in tables:
        forward.cache.free(table)


@pytest.mark.slow
def test_only_places_that_sample_make_steps_dearer(forward: GpuForward, folder: Path) -> None:
    """Who comes and goes decides which graph a step is; a place's settings do not stay behind."""
    texts = texts_of(GREEDY, SAMPLED, FILTERED)
    stepper = make_stepper(forward, PLAIN, 3, frozenset())
    tables = seat(forward, stepper, texts)
    kinds = [stepper.drawing.kind]
    for place in (2, 1):
        stepper.end(place)
        kinds.append(stepper.drawing.kind)
    assert kinds == [Kind.FILTERED, Kind.SAMPLED, Kind.GREEDY]
    again = texts_of(SamplingParams(3, 1.0, seed=8), GREEDY, SamplingParams(3, top_k=5, top_p=0.5, seed=9))
    tables += seat(forward, stepper, again)
    assert stepper.drawing.kind is Kind.SAMPLED
    for _ in range(GREEDY.max_tokens):
        step(stepper, again)
    check(folder, again)
    for table in tables:
        forward.cache.free(table)


ASKED = {
    "max_tokens": SamplingParams(3),
    "temperature": SamplingParams(3, 1.0, seed=21),
    "top_p": SamplingParams(3, 1.0, top_p=0.9, seed=21),
    "top_k": SamplingParams(3, 1.0, top_k=3, seed=21),
    "min_p": SamplingParams(3, 1.0, min_p=0.2, seed=21),
    "repetition_penalty": SamplingParams(3, 1.0, repetition_penalty=1.3, seed=21),
    "presence_penalty": SamplingParams(3, 1.0, presence_penalty=0.5, seed=21),
    "frequency_penalty": SamplingParams(3, 1.0, frequency_penalty=0.5, seed=21),
    "logit_bias": SamplingParams(3, 1.0, logit_bias={1: 2.0}, seed=21),
    "seed": SamplingParams(3, 1.0, seed=22),
    "stop": SamplingParams(3, stop=("never said",)),
}
"""By the field of SamplingParams that it sets."""


def test_every_field_has_settings_to_try_it_with() -> None:
    """One that is new is tried with the stepper before it may be named among those that are obeyed."""
    assert set(ASKED) == {each.name for each in fields(SamplingParams)}


def test_the_engine_lets_the_device_draw(forward: GpuForward, folder: Path) -> None:
    """Every field of SamplingParams that the stepper says it obeys, it obeys; the host sees to the others."""
    policy, prompt = Autoregressive(), list(range(40, 50))
    sequences = {
        name: Sequence(list(prompt), params, policy, frozenset(), 512, choice=3) for name, params in ASKED.items()
    }
    engine = Engine(forward, byte_tokenizer())
    texts = {sequence: Text(prompt, sequence.params, sequence.choice) for sequence in sequences.values()}
    for sequence in texts:
        engine.add(sequence)
    while engine.scheduler.has_work:
        for sequence, stride in engine.step():
            assert isinstance(stride, Stride)
            texts[sequence].tokens += stride.tokens
            texts[sequence].confidence += stride.confidence
    assert engine.own_steps.failures == 0
    for name, sequence in sequences.items():
        assert sequence.stats.forwards == 3
        assert sequence.stats.own_forwards == (2 if name in GpuStepper.obeys | ENGINE_FIELDS else 0), name
    check(folder, list(texts.values()))
    engine.reset()
    forward.cache.check_integrity()


@triton.jit
def noise(keys, positions, noise, N: tl.constexpr):
    place, token_N = tl.program_id(0), tl.arange(0, N)
    key = key_at(keys, place, tl.load(positions + place))
    tl.store(noise + place * N + token_N, gumbel(token_N, key))


def test_noise_is_the_hosts() -> None:
    """Seeds and words on either side of the sign, up to the last bits of a logarithm."""
    cases = [(0, 0, 1), (1, 0, 1), (1, 3, 1), (2**63 - 1, 1, 77), (2**63, 0, 4095), (2**64 - 1, 7, 2**20)]
    keys = torch.tensor([signed(sampling.noise_key(seed, choice)) for seed, choice, _ in cases], device=DEVICE)
    positions = torch.tensor([position for *_, position in cases], dtype=torch.int32, device=DEVICE)
    noise_BV = torch.zeros(len(cases), 1024, dtype=torch.float64, device=DEVICE)
    noise[(len(cases),)](keys, positions, noise_BV, N=tl.constexpr(1024))
    for noise_V, case in zip(noise_BV.cpu(), cases, strict=True):
        torch.testing.assert_close(noise_V, sampling.gumbel_of(torch.arange(1024), *case), rtol=1e-14, atol=1e-14)


FILTERS = [
    SamplingParams(temperature=1.25, top_k=top_k, top_p=top_p, min_p=min_p)
    for top_k, top_p, min_p in [
        (0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (299, 1.0, 0.0), (300, 1.0, 0.0), (10**12, 1.0, 0.0),
        (0, 0.02, 0.0), (0, 0.31, 0.0), (0, 0.97, 0.0), (0, 0.99999, 0.0), (0, 1e-6, 0.0), (0, 1.0, 0.03),
        (0, 1.0, 1.0), (20, 0.61, 0.0), (3, 0.97, 0.0), (50, 0.83, 0.07), (0, 0.53, 0.3), (9, 0.9, 0.9),
    ]
]  # fmt: skip


@pytest.mark.parametrize("steps", [None, 2.0], ids=["apart", "many equal"])
def test_filters_keep_what_the_host_keeps(steps: float | None) -> None:
    """Also of equal scores: top-k keeps them together, top-p takes the first ones."""
    logits_BV = 3 * torch.randn(len(FILTERS), 300, generator=torch.Generator().manual_seed(0))
    if steps:
        logits_BV = (logits_BV * steps).round() / steps
    drawing = Drawing(len(FILTERS), torch.device(DEVICE))
    for place, params in enumerate(FILTERS):
        drawing.begin(place, params, 0, 0)
    best_BT = logits_BV.amax(dim=1, keepdim=True).to(DEVICE)
    least_B, last_B = (each.cpu() for each in drawing.cutoffs(logits_BV.to(DEVICE), best_BT, PLAIN))
    for place, (params, logits_V) in enumerate(zip(FILTERS, logits_BV, strict=True)):
        scores_V = (logits_V - logits_V.max()) * torch.tensor(1 / 1.25)
        kept_V = sampling.keep_likely(scores_V, params) > -torch.inf
        ours_V = (scores_V > least_B[place]) | ((scores_V == least_B[place]) & (torch.arange(300) <= last_B[place]))
        assert torch.equal(ours_V, kept_V), params


def test_what_is_drawn_is_what_the_host_draws(forward: GpuForward) -> None:
    """From logits with many equal ones, so that borders run through them."""
    logits_BV = (4 * torch.randn(len(FILTERS), 300, generator=torch.Generator().manual_seed(1))).round() / 2
    layout = make_stepper(forward, PLAIN, len(FILTERS), frozenset()).layout
    drawing = Drawing(len(FILTERS), torch.device(DEVICE))
    for place, params in enumerate(FILTERS):
        drawing.begin(place, params, seed=place, choice=1)
        layout.starts_B[place] = 10 * place
    padded_BV = torch.nn.functional.pad(logits_BV, (0, 84), value=-torch.inf)
    best_BT, at_BT = (each.to(DEVICE) for each in padded_BV.unflatten(1, (3, VOCABULARY_TILE)).max(dim=2))
    tokens_BT = (at_BT + VOCABULARY_TILE * torch.arange(3, device=DEVICE)).int()
    scores = Scores(best_BT, logits_BV.to(DEVICE), best_BT, tokens_BT, best_BT)
    noisy = drawing.at_nodes(scores, layout, PLAIN)
    drawn_B = noisy.tokens_RT.gather(1, noisy.best_RT.argmax(dim=1, keepdim=True))[:, 0]
    for place, params in enumerate(FILTERS):
        before = [0] * (10 * place + 1)
        host = sampling.draw(logits_BV[place], params, before, 0, seed=place, choice=1)
        assert int(drawn_B[place]) == host, params
