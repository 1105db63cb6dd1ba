"""openai-python's own tests against our server. They are generated for a mock that takes every field of OpenAI's
description at once; what only a mock takes is left out here."""

import os
from typing import Any

import pytest

from peer_server import running
from requests_of_openai import change_bodies

DROPPED = ("web_search_options", "moderation")
"""Ask for a search and for another model's judgement: what no server of a text model has."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before the suite's conftest reads the address."""
    port = running("--any-model-name")
    os.environ["TEST_API_BASE_URL"] = f"http://127.0.0.1:{port}/v1"
    change_bodies(_drop)


def _drop(body: dict[str, Any]) -> None:
    for field in DROPPED:
        body.pop(field, None)
