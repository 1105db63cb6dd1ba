"""transformers' tests of `transformers serve` against our server. What they import of transformers is a stand-in, but
for the server that they start; decorators that ask for a GPU or for patience let every test through."""

import importlib
from typing import Any

from peer_server import running
from requests_of_openai import change_bodies
from stand_ins import stand_in


class Serve:
    """In place of `transformers.cli.serve.Serve`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.port = running("--any-model-name")

    def kill_server(self) -> None:
        """It stays for the next class that wants one like it."""


def _add_defaults(body: dict[str, Any]) -> None:
    """What `transformers serve` takes where a request does not say."""
    body.setdefault("max_tokens", 1024)
    body.setdefault("temperature", 0)


def _everywhere(test: Any) -> Any:
    return test


def pytest_configure() -> None:
    stand_in("transformers")
    serve: Any = importlib.import_module("transformers.cli.serve")
    serve.Serve = Serve
    conditions: Any = importlib.import_module("transformers.testing_utils")
    for name in ("librosa", "multipart", "serve", "torch_accelerator", "torchcodec", "vision"):
        setattr(conditions, f"require_{name}", _everywhere)
    conditions.slow = _everywhere
    change_bodies(_add_defaults)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Let the file's own helper, which starts a server on a port of its choice, say where ours is."""
    for module in {item.module for item in items if hasattr(item, "module")}:
        if hasattr(module, "_start_serve"):
            module._start_serve = _start_serve


def _start_serve(**settings: Any) -> tuple[Serve, int]:
    server = Serve(**settings)
    return server, server.port
