"""The tables of docs/claims.md: what others have claimed, and we, beside what bench/results says of it.

A claim's own figures are its source's words. Everything else is read from bench/results, the verdict included: a
measurement that is made anew may change it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.measured import read

HOLDS, PARTLY, NOT = "holds", "in part", "not here"
VERDICTS = (HOLDS, PARTLY, NOT)

SELF_DISTILLATION = "[arXiv 2602.06019](https://arxiv.org/abs/2602.06019)"
KNOWS_THE_FUTURE = "[arXiv 2507.11851](https://arxiv.org/abs/2507.11851)"
SPECULATIVE = "[arXiv 2211.17192](https://arxiv.org/abs/2211.17192)"
MEDUSA = "[arXiv 2401.10774](https://arxiv.org/abs/2401.10774)"
LOOK_UP = "[prompt-lookup-decoding](https://github.com/apoorvumang/prompt-lookup-decoding)"

OBJECTIVES = (
    "python bench/training/objectives.py --prompts questions.jsonl --runs runs --json objectives.json "
    "--unverified unverified.json"
)
ACCEPTANCE = "stridelm acceptance --model smollm2 --prompts bench/prompts/gsm8k_heldout.jsonl"
SWEEP = (
    "python bench/training/sweep.py --model smollm2 --prompts questions.jsonl --rollouts rollouts --json sweep.json "
    """--base BASE '{"sequential_size": 0}'"""
)
EXACT = "python bench/cpu/exact.py"
DECODERS = "python bench/decoding/decoders.py --json decoders.json --markdown decoders.md"
RELATION = "python bench/decoding/acceptance_and_speed.py"
DRAFTERS = "python bench/training/drafters.py --json drafters.json"
SERVING = "python bench/decoding/serving.py"
CPU = "python bench/cpu/run.py"
FRONTIER = "python bench/frontier/h200.py --runs runs --json frontier.json"
COUPLING = "python bench/decoding/coupling.py --json coupling.json"

_PUBLISHED_LOSS, _PUBLISHED_PACE = -0.019, 3.3
"""Of the 8B model: accuracy, and tokens per forward."""

Finding = tuple[str, str]
"""What was measured, in words, and the verdict."""


@dataclass(frozen=True, slots=True)
class Claim:
    says: str
    source: str
    measure: Callable[[], Finding]
    command: str
    """Measures it anew."""


def verdict(*parts: bool) -> str:
    """Of a claim with several parts."""
    return HOLDS if all(parts) else PARTLY if any(parts) else NOT


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _unverified(subject: str, threshold: float = 0.9) -> dict[str, Any]:
    """ConfAdapt with one conversion."""
    (found,) = (
        entry
        for entry in read("unverified.json")["subjects"][subject]["settings"]
        if entry["decoder"] == "adaptive" and entry["threshold"] == threshold
    )
    return found


def _told(entry: dict[str, Any]) -> str:
    return f"{entry['tokens_per_forward']:.2f} (agreement {entry['own']['agreement']:.2f})"


def conf_adapt() -> Finding:
    names = "full: online, hard, random k", "shipped: distill, soft, sequential head, 4,200 steps"
    whole, shipped = map(_unverified, names)
    steps = read("objectives.json")[names[0]]["steps"]
    told = (
        f"tokens per forward at a threshold of 0.9, and agreement with its own plain text: {_told(whole)} for a whole "
        f"model after {steps} steps, {_told(shipped)} for the shipped adapter"
    )
    return told, verdict(max(each["tokens_per_forward"] for each in (whole, shipped)) >= 3)


def frontier() -> Finding:
    """On a task that the model masters: the fastest point of ConfAdapt that loses no more than was published."""
    points = [each for each in read("frontier.json")["frontier"]["points"] if each["conversion"] == "gated"]
    plain, exact = points[0], points[1]
    within = [
        each
        for each in points
        if each["decoder"] == "adaptive" and each["accuracy"] - plain["accuracy"] >= _PUBLISHED_LOSS
    ]
    if not within:
        return "no threshold loses so little", NOT
    best = max(within, key=lambda each: each["tokens_per_forward"])
    told = (
        f"a task of sums that the built-in model masters: {best['setting']}, "
        f"{100 * (best['accuracy'] - plain['accuracy']):+.1f} points at {best['tokens_per_forward']:.2f}; exact "
        f"decoding there makes {exact['tokens_per_forward']:.2f} with none lost"
    )
    return told, verdict(best["tokens_per_forward"] >= _PUBLISHED_PACE)


def adaptation() -> Finding:
    domains = read("frontier.json")["adaptation"]["domains"]
    own = [each["after"] / each["general"] for each in domains if each["trained_on"]]
    others = [each["after"] / each["general"] for each in domains if not each["trained_on"]]
    told = (
        f"over prompts of every kind, at equal training: {', '.join(f'{each:.2f}x' for each in own)} tokens per "
        f"forward on the domain, {', '.join(f'{each:.2f}x' for each in others)} on others"
    )
    return told, verdict(all(each > 1 for each in own))


def random_k() -> Finding:
    names = ("full: online, hard", "full: online, hard, random k")
    verified = [read("objectives.json")[name]["verified"]["tokens_per_forward"] for name in names]
    fixed, drawn = map(_unverified, names)
    told = (
        f"a whole model, tokens per forward: verified {verified[0]:.2f} with a fixed k, {verified[1]:.2f} with a "
        f"random one; unverified, at a threshold of 0.9, {_told(fixed)} and {_told(drawn)}"
    )
    return told, verdict(
        verified[1] > verified[0],
        drawn["tokens_per_forward"] > fixed["tokens_per_forward"],
        drawn["own"]["agreement"] > fixed["own"]["agreement"],
    )


def critic() -> Finding:
    names = ("ground truth", "online, hard", "distill, hard")
    given, online, own = (read("objectives.json")[name]["verified"]["tokens_per_forward"] for name in names)
    told = (
        f"adapters after equal steps, tokens per forward, verified: {given:.2f} from given answers, {online:.2f} from "
        f"the teacher that reads along, {own:.2f} from the model's own answers without it"
    )
    return told, verdict(online > given)


def side_by_side() -> Finding:
    failures = read("unverified.json")["subjects"]["ground truth"]["failures"]
    shares = [failures["misfits"]["share"], failures["misfits_of_own_plain"]["share"]]
    repeated = [each["repeated_at_once"]["all"]["share"] for each in (failures, failures["base_plain"])]
    told = (
        f"all of {failures['k']} tokens a pass taken, an adapter trained on given answers: {percent(shares[0], 1)} of "
        f"pairs do not fit ({percent(shares[1], 1)} in plain text), {percent(repeated[0])} of tokens repeat the one "
        f"before ({percent(repeated[1])})"
    )
    return told, verdict(shares[0] > 2 * shares[1], repeated[0] > 2 * repeated[1])


def gate() -> Finding:
    runs = read("exact-auto.json").values()
    answers, tokens, different = (sum(run[name] for run in runs) for name in ("prompts", "tokens", "different"))
    told = (
        f"{different} of {answers:,} answers of `auto` ({tokens:,} tokens), greedy and sampled, differ from plain "
        "decoding"
    )
    return told, verdict(different == 0)


def sampler() -> Finding:
    runs = read("sweep-h200.json")["runs"]
    with_head, without = (
        next(run for run in runs if run["changes"] == changes) for changes in ({}, {"sequential_size": 0})
    )
    told = (
        f"tokens per forward {without['tokens_per_forward']:.2f} without it, {with_head['tokens_per_forward']:.2f} "
        f"with it; the fourth draft stands in {percent(without['acceptance'][3])} and "
        f"{percent(with_head['acceptance'][3])} of cases"
    )
    return told, verdict(with_head["tokens_per_forward"] > without["tokens_per_forward"])


def by_subject() -> Finding:
    maths, kinds = read("acceptance.json").values()
    bars = read("decoders.json")["bars"]
    told = (
        f"tokens per forward: {maths['tokens_per_forward']:.2f} on maths, {kinds['mean_over_categories']:.2f} on "
        f"{len(kinds['categories'])} kinds of prompts; in time on two cores, float32: {bars['maths_over_plain']:.2f}x "
        f"and {bars['general_over_plain']:.2f}x"
    )
    reached = maths["tokens_per_forward"] >= 4.5, kinds["mean_over_categories"] >= 2.5
    return told, verdict(*reached, bars["maths_over_plain"] >= 4.5, bars["general_over_plain"] >= 2.5)


def lossless() -> Finding:
    bars = read("decoders.json")["bars"]
    same, runs = bars["auto_identical_to_plain"], bars["auto_runs"]
    speeds = bars["maths_over_plain"], bars["general_over_plain"]
    told = (
        f"{same} of {runs} answers of `auto` identical; on two cores, float32, {speeds[0]:.2f}x on maths, "
        f"{speeds[1]:.2f}x on twelve kinds of prompts"
    )
    return told, verdict(same == runs, min(speeds) >= 2)


def relation() -> Finding:
    found = {
        rate: entry["tokens_per_forward"] for rate, entry in read("acceptance_and_speed.json")["acceptance"].items()
    }
    told = "; ".join(
        f"{percent(float(rate))} right: {entry['theory']:.2f} predicted, {entry['measured']:.2f} measured"
        for rate, entry in found.items()
    )
    return told, verdict(all(abs(entry["measured"] / entry["theory"] - 1) < 0.1 for entry in found.values()))


def look_up() -> Finding:
    kinds = read("decoders.json")["kinds"]
    speeds = {kind: kinds[kind]["ngram"]["speed_up"] for kind in ("extraction", "summarisation", "qa", "rag")}
    told = "`ngram` over plain decoding, float32: " + ", ".join(f"{kind} {each:.2f}x" for kind, each in speeds.items())
    return told, verdict(*(each >= 2 for each in speeds.values()))


def heads() -> Finding:
    maths, kinds = read("drafters.json")["prompts"].values()
    told = (
        f"tokens per forward, which the speed-up cannot pass: {maths['heads']['tokens_per_forward']:.2f} on maths, "
        f"{kinds['heads']['tokens_per_forward']:.2f} on twelve kinds; masks of the same model "
        f"{maths['self']['tokens_per_forward']:.2f} and {kinds['self']['tokens_per_forward']:.2f}"
    )
    return told, verdict(maths["heads"]["tokens_per_forward"] >= 2.2, kinds["heads"]["tokens_per_forward"] >= 2.2)


def load() -> Finding:
    users = {line["users"]: line for line in read("serving.json")["summary"]}
    told = "`auto` over plain decoding: " + ", ".join(
        f"{count} {'user' if count == 1 else 'users'} {users[count]['ratio']:.2f} "
        f"({users[count]['low']:.2f} to {users[count]['high']:.2f}, {users[count]['tokens per forward']:.2f} tokens "
        "per forward)"
        for count in (1, 8)
    )
    return told, verdict(users[8]["high"] < 1)


def never_slower() -> Finding:
    """By what is likeliest, not by whether the interval leaves a doubt."""
    kinds = {kind: found["mean"] for kind, found in read("decoders.json")["bars"]["by_kind"].items()}
    prefix = "multi_vs_plain_"
    weights = {
        name.removeprefix(prefix): ratio
        for name, ratio in read("cpu.json")["ratios"].items()
        if name.startswith(prefix)
    }
    users = {f"{line['users']} users": line["ratio"] for line in read("serving.json")["summary"]}
    places = {"kinds of prompts in float32": kinds, "in 4 bits": weights, "numbers of users": users}
    slowest = [(place, len(found), *min(found.items(), key=lambda each: each[1])) for place, found in places.items()]
    told = "the slowest: " + ", ".join(
        f"{ratio:.2f}x ({name}) of {count} {place}" for place, count, name, ratio in slowest
    )
    return told, verdict(*(ratio >= 1 for _, _, _, ratio in slowest))


def past_llama_cpp() -> Finding:
    cpu = read("cpu.json")
    names = {"one token at a time": "plain_vs_llamacpp", "`auto`": "multi_vs_llamacpp"}
    found = {name: (cpu["ratios"][key], *cpu["ratio_intervals"][key]) for name, key in names.items()}
    told = f"over llama.cpp, one {cpu['run']['weights']} file, {cpu['machine']['threads']} threads: " + ", ".join(
        f"{name} {ratio:.2f}x ({low:.2f} to {high:.2f})" for name, (ratio, low, high) in found.items()
    )
    return told, verdict(*(low > 1 for _, low, _ in found.values()))


def coupled() -> Finding:
    found = read("coupling.json")["tokens_per_forward"]
    told = "tokens per forward: " + "; ".join(
        f"temperature {temperature}: {entry['coupled']:.2f}, with the likeliest token as draft {entry['argmax']:.2f}"
        for temperature, entry in found.items()
    )
    return told, verdict(*(entry["coupled"] > entry["argmax"] for entry in found.values()))


PUBLISHED = (
    Claim(
        "A model tuned by online self-distillation takes 3 tokens per forward with ConfAdapt, unverified, and loses "
        "less than 5 % of its accuracy on GSM8K (8B, threshold 0.9: 3.3 tokens, 64.1 % instead of 66.0 %)",
        SELF_DISTILLATION, conf_adapt, OBJECTIVES,
    ),
    Claim("-1.9 points at 3.3 tokens per forward (8B, ConfAdapt)", SELF_DISTILLATION, frontier, FRONTIER),
    Claim("k must be drawn anew for every training step", SELF_DISTILLATION, random_k, OBJECTIVES),
    Claim(
        "A teacher that reads the student's tokens gives better labels than the text",
        SELF_DISTILLATION, critic, OBJECTIVES,
    ),
    Claim(
        "Masks trained on given text guess side by side: neighbours do not fit, and tokens repeat",
        SELF_DISTILLATION, side_by_side, OBJECTIVES,
    ),
    Claim(
        "Several tokens at a time are slower under load: 2.31x at one user, 0.41x at eight",
        SELF_DISTILLATION, load, SERVING,
    ),
    Claim("An adapter that only masks pass through leaves the model's text as it was", KNOWS_THE_FUTURE, gate, EXACT),
    Claim("A small head that reads the token drawn before makes drafts coherent", KNOWS_THE_FUTURE, sampler, SWEEP),
    Claim("Nearly 5x on maths and code, almost 2.5x on chats (8B, 8 masks)", KNOWS_THE_FUTURE, by_subject, ACCEPTANCE),
    Claim("Verified drafts change nothing, and bring 2x to 3x", SPECULATIVE, lossless, DECODERS),
    Claim(
        "With a share a of K drafts right, a pass makes (1 - a^(K+1)) / (1 - a) tokens", SPECULATIVE, relation, RELATION
    ),
    Claim("Look-up in the prompt brings 2x to 4x where answers repeat their input", LOOK_UP, look_up, DECODERS),
    Claim("Heads on the last hidden state bring 2.2x to 3.6x", MEDUSA, heads, DRAFTERS),
)  # fmt: skip
OWN = (
    Claim("`auto` is not slower than one token at a time", "[decoding](decoding.md)", never_slower, DECODERS),
    Claim("A domain's own prompts make more tokens per forward there", "[bench](bench.md)", adaptation, FRONTIER),
    Claim("Past llama.cpp on two cores", "[performance](performance.md)", past_llama_cpp, CPU),
    Claim(
        "Drafts drawn with the target's own noise stand more often under sampling",
        "[decoding](decoding.md)", coupled, COUPLING,
    ),
)  # fmt: skip


def table(claims: tuple[Claim, ...]) -> str:
    lines = ["| claim | source | measured here | verdict | repeat it |", "|---|---|---|---|---|"]
    for claim in claims:
        told, holds = claim.measure()
        lines.append(f"| {claim.says} | {claim.source} | {told} | **{holds}** | `{claim.command}` |")
    return "\n".join(lines)


def published_claims() -> str:
    return table(PUBLISHED)


def own_claims() -> str:
    return table(OWN)
