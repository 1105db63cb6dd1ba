"""What bench/decoding/unverified.py measured, as Markdown."""

from typing import Any

from stridelm.params import InputError

Content = dict[str, Any]


def setting_name(entry: dict[str, Any]) -> str:
    """As in `adaptive, threshold 0.9`."""
    name = "threshold" if entry["decoder"] == "adaptive" else "k"
    return f"{entry['decoder']}, {name} {entry[name]}"


def tables(contents: list[Content]) -> str:
    """Both tables, of all subjects of some files."""
    return f"{quality_table(contents)}\n\n{failure_table(contents)}"


def quality_table(contents: list[Content]) -> str:
    """Every subject with every setting. The first row is the base model, one token at a time."""
    base, subjects = _merged(contents)
    lines = [
        "| subject | setting | tokens per forward | agreement with its own plain text | identical | agreement with the "
        "base's | log-likelihood | repeated 4-grams | repeated tokens |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| base | one token at a time | 1.00 | | | | {_text(base)} |",
    ]
    for name, subject in subjects.items():
        if not subject["shares_weights"]:
            lines.append(_row(name, "one token at a time", subject["plain"]))
        lines += [_row(name, setting_name(entry), entry) for entry in subject["settings"]]
    return "\n".join(lines)


def failure_table(contents: list[Content]) -> str:
    """Counts of the two failures, from strides of k tokens; the base's row is its plain text cut into such strides."""
    _, subjects = _merged(contents)
    lines = [
        "| subject | k | pairs that do not fit | in its own plain text | repeated at once | by depth, % | repeated "
        "within a stride | by depth, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shown: set[int] = set()
    for name, subject in subjects.items():
        if (failures := subject["failures"]) is None:
            continue
        k = failures["k"]
        if k not in shown:
            shown.add(k)
            lines.append(f"| base, plain text | {k} | | | {_depths(failures['base_plain'])} |")
        lines.append(
            f"| {name} | {k} | {_of(failures['misfits'])} | {_of(failures['misfits_of_own_plain'])} | "
            f"{_depths(failures)} |"
        )
    return "\n".join(lines)


def _merged(contents: list[Content]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base model's figures, and all subjects."""
    first = contents[0]
    for content in contents:
        if content["conditions"] != first["conditions"]:
            raise InputError(
                f"these figures were not made alike: {content['conditions']} and {first['conditions']} do not belong "
                "in one table"
            )
    return first["base_plain"], {name: each for content in contents for name, each in content["subjects"].items()}


def _row(name: str, setting: str, entry: dict[str, Any]) -> str:
    own, base = entry["own"], entry["base"]
    return (
        f"| {name} | {setting} | {entry['tokens_per_forward']:.2f} | {own['agreement']:.3f} | "
        f"{own['identical']['count']} of {own['identical']['of']} | {base['agreement']:.3f} | {_text(entry)} |"
    )


def _text(entry: dict[str, Any]) -> str:
    return (
        f"{entry['log_likelihood']:.3f} | {_percent(entry['repeated_ngrams'])} | {_percent(entry['repeated_tokens'])}"
    )


def _depths(entry: dict[str, Any]) -> str:
    parts = (entry["repeated_at_once"], entry["repeated_in_stride"])
    shares = (" ".join(f"{100 * depth['share']:.1f}" for depth in part["by_depth"]) for part in parts)
    return " | ".join(f"{_of(part['all'])} | {by_depth}" for part, by_depth in zip(parts, shares, strict=True))


def _of(share: dict[str, Any]) -> str:
    return f"{share['count']} of {share['of']} ({_percent(share)})"


def _percent(share: dict[str, Any]) -> str:
    return f"{100 * share['share']:.1f} %"
