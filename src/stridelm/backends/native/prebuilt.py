"""The builds of the kernels that a wheel brings (hatch_build.py), so that no compiler is needed where it is installed.

A checkout, an editable install and a wheel that was made without a compiler have none of them: there the kernels are
compiled at first use, for the processor at hand.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("prebuilt")


@dataclass(frozen=True, slots=True)
class Build:
    name: str
    target: tuple[str, ...]
    """The compiler's flags in place of -march=native. The processor that instructions are ordered for (-mtune) changes
    no result; with these two, the builds were as fast as -march=native (docs/decisions.md)."""
    needs: frozenset[str]
    """What the processor must have, as /proc/cpuinfo names it."""

    @property
    def path(self) -> Path:
        return FOLDER / f"forward-{self.name}.so"


_V3 = {
    "cx16", "lahf_lm", "popcnt", "ssse3", "sse4_1", "sse4_2",
    "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave",
}  # fmt: skip
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

BUILDS = (
    Build(
        "x86-64-v4-vnni",
        ("-march=x86-64-v4", "-mavx512vnni", "-mtune=icelake-server"),
        frozenset(_V4 | {"avx512_vnni"}),
    ),
    Build("x86-64-v3", ("-march=x86-64-v3", "-mtune=znver3"), frozenset(_V3)),
)
"""The best first."""

LINK_FLAGS = ("-pthread", "-s", "-static-libstdc++", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL")
"""The C++ library is linked in, and nothing of it is visible: the oldest one that serves would otherwise be that of the
machine where the wheel was made."""


def find_prebuilt(processor_flags: str) -> Path | None:
    """The best build that a processor with these flags runs; None if none is here, or none fits."""
    has = set(processor_flags.split())
    return next((build.path for build in BUILDS if build.needs <= has and build.path.is_file()), None)
