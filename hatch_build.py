"""Run by hatchling when a wheel is made: compiles the native CPU kernels for two kinds of x86-64 processors, so that
whoever installs the wheel needs no compiler.

Where this cannot be done, a wheel without kernels is made, and a warning says so: they are compiled at first use then.
An editable install has none either.
"""

import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path(__file__).parent / "src"


class KernelBuilds(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(_PACKAGE))  # of the package only what imports nothing from outside
        from stridelm.backends.common.compiler import CannotCompile, compile_to
        from stridelm.backends.native.library import SOURCE, flags_for
        from stridelm.backends.native.prebuilt import BUILDS, LINK_FLAGS

        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            self.app.display_warning("no kernels in this wheel: they are compiled for x86-64 processors on Linux only")
            return
        self._working = tempfile.TemporaryDirectory(prefix="stridelm-kernels-")
        made = [Path(self._working.name) / build.path.name for build in BUILDS]
        try:
            for build, path in zip(BUILDS, made, strict=True):
                self.app.display_info(f"compiling the kernels for {build.name} ...")
                compile_to(path, SOURCE, flags_for(build.target), LINK_FLAGS)
        except CannotCompile as error:
            self.app.display_warning(
                f"no kernels in this wheel: {error}. They are compiled at first use, if they can be"
            )
            return
        for build, path in zip(BUILDS, made, strict=True):
            build_data["force_include"][str(path)] = str(build.path.relative_to(_PACKAGE))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform(made)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_working"):
            self._working.cleanup()


def _platform(objects: list[Path]) -> str:
    """The oldest glibc that has all functions that these objects name, as a platform tag."""
    minors = [int(minor) for path in objects for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"manylinux_2_{max(minors)}_x86_64" if minors else "linux_x86_64"
