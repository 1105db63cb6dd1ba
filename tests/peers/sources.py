"""Where a suite's files come from: a folder that was given, or the package's source distribution on PyPI."""

import os
import subprocess
import sys
from pathlib import Path

from suites import Suite


class NoSource(Exception):
    """A suite cannot be had; says what would help."""


def obtain(suite: Suite, given: Path | None, scratch: Path) -> Path:
    """The folder that pytest is to run in."""
    tree = given or _from_pypi(suite, scratch)
    root = tree / suite.root
    missing = [each for each in suite.scope if not (root / each).exists()]
    if missing:
        raise NoSource(f"{tree} has no {suite.root and suite.root + '/'}{missing[0]}")
    return root


def _from_pypi(suite: Suite, scratch: Path) -> Path:
    if suite.repository:
        raise NoSource(
            f"PyPI has no tests of {suite.package}: give --source {suite.name}=FOLDER, a checkout of {suite.repository}"
        )
    # pip unpacks a source distribution before it asks the package about itself. That may fail, for want of what it
    # is built with; the unpacked files are all that is wanted, and --no-clean leaves them.
    name = suite.package.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-clean", "--no-build-isolation"]
    command += ["--no-binary", name, "--dest", str(scratch / "dest"), suite.package]
    ended = subprocess.run(command, env=os.environ | {"TMPDIR": str(scratch)}, capture_output=True, text=True)
    unpacked = sorted(scratch.glob(f"pip-*/{name.replace('-', '?')}_*"))
    if not unpacked:
        reason = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoSource(f"pip could not fetch {suite.package}: {reason}; or give --source {suite.name}=FOLDER")
    return unpacked[0]
