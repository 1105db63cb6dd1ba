"""Servers of a tiny model: in this process, without sockets, and in a thread with real ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import make_context, serving
from assembly import assembled
from real_server import ThreadServer, serve_in_thread
from stridelm.api import LanguageModel
from stridelm.serve.context import Context
from stridelm.settings import LoadSettings


@pytest.fixture(scope="module")
def context(converted: Callable[..., Any], tiny: Callable[..., Any]) -> Context:
    """With an adapter and a draft model."""
    target, gate = converted("llama")
    return make_context(assembled(target, tiny("llama", 1), LoadSettings(cache_tokens=4096), gate))


@pytest.fixture(scope="module")
def client(context: Context) -> Iterator[TestClient]:
    with serving(context) as made:
        yield made


@pytest.fixture
def server(language_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(language_model) as running:
        yield running
