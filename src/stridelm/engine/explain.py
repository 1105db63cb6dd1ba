"""`--explain`: what ran for a decoder, and why, as lines of text."""

from collections import Counter

from stridelm.contracts import Policy
from stridelm.engine.engine import Engine
from stridelm.stats import path_in_words


def explain(engine: Engine, policy: Policy, decoder: str) -> list[str]:
    """First the path, then the steps that the backend ran by itself, then those of the decoder's planner."""
    ran = engine.ran.get(policy, Counter[tuple[bool, int]]())
    own = Counter({drafts: count for (is_own, drafts), count in ran.items() if is_own})
    first = f"{decoder}: {_path(engine, ran.total(), own.total())}"
    planned = getattr(policy, "explain", None)
    if planned is None:
        return [f"{first}; no planner", *_own(own)]
    if not own:
        return [first, *planned()]
    of_host = ran.total() - own.total()
    if engine.own_steps.are_planned:
        costs, *chosen = planned()
        why = "the backend plans its own steps, by these times and by how drafts stand in the text"
        of_planner = [f"the planner, for the host's {of_host}:", *chosen] if of_host > own.total() else []
        return [f"{first}; {why}", costs, *_own(own), *of_planner]
    return [
        f"{first}; in its own steps the backend drafts chains, of the length that pays by their measured times: the "
        "planner has no part in these",
        *_own(own),
        f"the planner, for the host's {of_host} (those that read a prompt's end among them):",
        *planned(),
    ]


def _path(engine: Engine, forwards: int, own_forwards: int) -> str:
    """The path of all answers so far. The number of answers is not counted, so the step counts are always shown."""
    if not forwards:
        return f"{engine.forward.backend}, no steps yet"
    return path_in_words(engine.forward.backend, forwards, own_forwards, answers=0)


def _own(counts: Counter[int]) -> list[str]:
    """Steps that the backend ran by itself, by number of drafts."""
    total = counts.total()
    lines = [f"own steps, of {total}:"] if total else []
    for drafts, count in sorted(counts.items()):
        lines.append(f"  {count / total:4.0%}  {_drafts(drafts)}")
    return lines


def _drafts(count: int) -> str:
    return f"{count or 'no'} draft{'s' * (count != 1)}"
