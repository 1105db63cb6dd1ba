"""Stand-ins for packages that a suite imports and the tests that speak HTTP do not need.

Importing a peer's engine would take its gigabytes. What is imported from a stood-in package is a mock; a name that
matters is set by the suite's shim.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class _StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    """Finds every module of the given packages, before anything that is installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_ours = any(fullname == package or fullname.startswith(package + ".") for package in self._packages)
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(*packages: str) -> None:
    """Answer imports of these packages, and of all that is in them, with mocks."""
    sys.meta_path.insert(0, _Finder(packages))
