"""Which build of the kernels runs: one that the wheel brought, by the processor's flags, or one compiled here. That
their bits are equal is checked on the wheel itself: tests/install."""

import ctypes
import re
from pathlib import Path

import pytest

from stridelm.backends.common.compiler import CannotCompile
from stridelm.backends.native import library as library_module
from stridelm.backends.native import prebuilt
from stridelm.backends.native.library import FLAGS, flags_for, library
from stridelm.backends.native.prebuilt import BUILDS, find_prebuilt

V4, V3 = BUILDS
ZEN_5 = " ".join(sorted(V4.needs | {"avx512_bf16", "avx_vnni", "sha_ni"}))
WITHOUT_VNNI = " ".join(sorted(V4.needs - {"avx512_vnni"}))
HASWELL = " ".join(sorted(V3.needs))
SANDY_BRIDGE = "sse4_1 sse4_2 ssse3 popcnt cx16 lahf_lm avx xsave"


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file for every build."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    for build in BUILDS:
        build.path.write_bytes(b"not an object")
    return tmp_path


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [(ZEN_5, V4), (WITHOUT_VNNI, V3), (HASWELL, V3), (SANDY_BRIDGE, None), ("", None)],
)
def test_the_best_build_that_the_processor_runs_is_taken(flags: str, expected: prebuilt.Build | None) -> None:
    assert find_prebuilt(flags) == (None if expected is None else expected.path)


@pytest.mark.parametrize("lacking", sorted(V3.needs))
@pytest.mark.usefixtures("brought")
def test_no_build_runs_where_an_instruction_is_lacking(lacking: str) -> None:
    assert find_prebuilt(" ".join(V4.needs - {lacking})) is None


def test_a_checkout_has_none() -> None:
    assert find_prebuilt(ZEN_5) is None


def test_what_the_wheel_brought_is_not_compiled(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no object ends in CannotCompile, and not in a traceback."""
    monkeypatch.setattr(library_module, "processor_entry", lambda name: ZEN_5)
    monkeypatch.setattr(library_module, "compiled", lambda *given: pytest.fail("compiled"))
    library.cache_clear()
    try:
        with pytest.raises(CannotCompile, match=re.escape(str(brought))):
            library()
    finally:
        library.cache_clear()
    with pytest.raises(OSError, match=r"invalid|too short"):
        ctypes.CDLL(str(V4.path))


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_builds_differ_from_the_local_one_in_the_processor_alone(build: prebuilt.Build) -> None:
    """Above all, products and sums are fused only where the source says so."""
    flags = flags_for(build.target)
    assert "-ffp-contract=off" in flags
    assert [flag for flag in flags if flag not in build.target] == [flag for flag in FLAGS if flag != "-march=native"]
    assert all(flag.startswith("-m") for flag in build.target)
