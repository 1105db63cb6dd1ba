"""What `stridelm generate` says of an answer: two lines, the rest with --stats, all of it as JSON."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from stridelm.params import SamplingParams

if TYPE_CHECKING:
    from stridelm.types import Result


def summary(result: "Result", params: SamplingParams) -> list[str]:
    """Two lines: how fast it was, and what wrote it. The seed is named only if something was drawn."""
    stats = result.stats
    what = f"{result.decoder} ({result.path}), {'exact' if result.exact else 'not exact'}"
    seed = f", seed {result.seed}" if params.temperature else ""
    return [
        f"{stats.tokens} tokens in {stats.latency:.2f} s: {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.tokens_per_forward:.2f} tokens per forward",
        f"{what}, finished by {result.finish_reason}{seed}",
    ]


def statistics(result: "Result") -> list[str]:
    """All other figures, one a line."""
    stats = result.stats
    lengths = sorted(Counter(len(stride.tokens) for stride in result.strides).items())
    facts = {
        "first token": f"after {stats.ttft * 1e3:.0f} ms",
        "prompt": f"{stats.prompt_tokens} tokens, {stats.reused} of them read before",
        "forwards": f"{stats.forwards}, {stats.own_forwards} of them the backend's own; {stats.rows} rows",
        "drafts": f"{stats.drafted} proposed, {stats.accepted} accepted",
        "strides": ", ".join(f"{count} of {length}" for length, count in lengths) + " tokens",
        "seed": str(result.seed),
        "exact" if result.exact else "not exact": f"with respect to {result.exact_to}",
    }
    return [f"{name:<12} {what}" for name, what in facts.items()]


def as_json(result: "Result") -> dict[str, Any]:
    stats = result.stats
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "tokens": stats.tokens,
        "forwards": stats.forwards,
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "ttft_ms": round(stats.ttft * 1e3, 2),
        "latency_ms": round(stats.latency * 1e3, 2),
        "tokens_per_s": round(stats.tokens_per_second, 2),
        "decoder": result.decoder,
        "backend": result.backend,
        "own_forwards": stats.own_forwards,
        "path": result.path,
        "seed": result.seed,
        "exact": result.exact,
        "exact_to": result.exact_to,
    }
