"""Patterns of test ids."""

import re


def matches(test: str, pattern: str) -> bool:
    """Whether a pattern stands for a test: `*` is any text, and brackets are brackets."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), test, re.DOTALL) is not None
