"""llama.cpp's server tests against our server: in place of `llama-server` ours is started, with what its options mean
here, and what llama.cpp keeps at OpenAI's routes without their /v1 is asked with it."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from peer_server import running

_SAME_ROUTES = ("/chat/completions", "/models")
"""llama.cpp serves these with and without /v1. Its /completions is not OpenAI's."""

_LOCAL_SITES = tuple(
    f"http://{name}{port}" for name in ("localhost", "127.0.0.1", "[::1]") for port in ("", ":3000", ":8080")
)
"""What llama.cpp calls the origin `localhost`; ours wants each said."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    utils = importlib.import_module("utils")
    utils.ServerPreset.load_all = staticmethod(lambda: None)  # would fetch models
    process: Any = utils.ServerProcess
    process.start, process.stop = _start, _stop
    process.make_url = _make_url(process.make_url)
    process.make_request = _with_any_case(_with_defaults(process.make_request))
    process.make_stream_request = _with_null_first(_with_defaults(process.make_stream_request))


def _start(server: Any, **_: Any) -> None:
    options = ["--any-model-name"]
    for origin in _LOCAL_SITES if server.cors_origins == "localhost" else ("*",):
        options += ["--cors-origin", origin]
    for name in (server.model_alias or "model").split(","):
        options += ["--served-model-name", name]
    if server.n_ctx:
        options += ["--cache-tokens", str(server.n_ctx // (server.n_slots or 1))]
    if server.api_key:
        options += ["--api-key", server.api_key]
    server.server_port = running(*options)


def _stop(server: Any) -> None:
    """It stays for the next test that wants one like it."""


def _make_url(make_url: Any) -> Any:
    def made(server: Any, path: str, host: str | None = None) -> str:
        return make_url(server, f"/v1{path}" if path in _SAME_ROUTES else path, host)

    return made


def _with_defaults(request: Any) -> Any:
    """What a server of llama.cpp is started with holds for every request; ours wants it said."""

    def with_defaults(server: Any, method: str, path: str, data: Any = None, *rest: Any, **others: Any) -> Any:
        if isinstance(data, dict) and path.endswith("completions"):
            defaults = {"seed": server.seed, "temperature": server.temperature}
            if server.n_predict and "max_completion_tokens" not in data:
                defaults["max_tokens"] = server.n_predict
            data = defaults | data
        return request(server, method, path, data, *rest, **others)

    return with_defaults


def _with_any_case(request: Any) -> Any:
    """The names of headers have no case; the tests look for one."""

    def with_any_case(*arguments: Any, **others: Any) -> Any:
        response = request(*arguments, **others)
        response.headers = CaseInsensitiveDict(response.headers)
        return response

    return with_any_case


def _with_null_first(stream: Any) -> Any:
    """A stream's first chunk names the role, with the content "" at OpenAI and here, and null at llama.cpp."""

    def with_null_first(*arguments: Any, **others: Any) -> Iterator[Any]:
        for event in stream(*arguments, **others):
            for choice in event.get("choices", ()):
                if "role" in choice.get("delta", ()):
                    choice["delta"]["content"] = choice["delta"].get("content") or None
            yield event

    return with_null_first
