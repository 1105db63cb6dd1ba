"""The server against its own description: whatever fits it, and whatever does not, is answered as it says."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from real_server import NAME, PATIENCE, ThreadServer, serve_in_thread, until
from stridelm.api import LanguageModel
from stridelm.serve.settings import ServeSettings

CASES = 25
MANY_CASES = int(os.environ.get("STRIDELM_FUZZ_CASES", "1000"))
MOST_TOKENS = 4
COUNTS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""The fields for the maximum number of tokens of the routes that else go on to the end of the context."""
ASKING = (*COUNTS, "/v1/messages/count_tokens", "/v1/completions", "/tokenize", "/detokenize", "/playground/race")
STATUS = ("/health", "/version", "/v1/models", "/v1/models/{name}", "/metrics")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def server(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0)) as running:
        yield running
        with running.client() as client:
            assert client.get("/health").json() == {"status": "ok"}
        cache = running.context.model.engine.forward.cache
        until(lambda: cache.free_blocks == cache.block_count)
        cache.check_integrity()


@pytest.fixture(scope="module")
def described(server: ThreadServer) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def known(value: Any, vocabulary: int) -> Any:
    """Tokens that the model has, in whole numbers: a schema takes 1.0 for one, the server does not."""
    match value:
        case list():
            return [known(inner, vocabulary) for inner in value]
        case bool():
            return value
        case int() | float() if value == int(value) and value >= 0:
            return int(value) % vocabulary
    return value


def reach_the_engine(path: str, body: Any) -> Any:
    """The served model's name in a random one's place, and few tokens: else most cases end with their first check."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    if isinstance(body.get("model"), str) and len(body["model"]) <= 1024:
        body["model"] = NAME
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        given = body.get(name)
        if type(given) is int and MOST_TOKENS < given < 2**31:
            body[name] = MOST_TOKENS
    if path != "/v1/messages" and path in COUNTS and all(body.get(name) is None for name in COUNTS[path]):
        body[COUNTS[path][-1]] = MOST_TOKENS
    return body


def check_cases(server: ThreadServer, described: Any, path: str, mode: GenerationMode, cases: int) -> dict[int, int]:
    """How often each status came."""
    operation = described[path]["POST" if path in ASKING else "GET"]
    documented = {int(status) for status in operation.definition.raw["responses"] if status != "default"}
    counts: dict[int, int] = {}

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a failing case is told as it came: to shrink it takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        try:
            case = data.draw(operation.as_strategy(generation_mode=mode))
        except InvalidSchema:  # a rare combination of its own changes that schemathesis finds no value for
            reject()
        case.body = reach_the_engine(path, case.body)
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            vocabulary = server.context.model.target.vocabulary
            case.body |= {
                name: known(case.body[name], vocabulary) for name in ("prompt", "tokens") if name in case.body
            }
        reply = case.call(base_url=server.url, timeout=PATIENCE)
        counts[reply.status_code] = counts.get(reply.status_code, 0) + 1
        case.validate_response(reply, checks=CHECKS)
        assert reply.status_code < 500 and reply.status_code in documented, reply.text

    check()
    return counts


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", ASKING)
def test_the_server_does_as_it_says(server: ThreadServer, described: Any, path: str, mode: GenerationMode) -> None:
    counts = check_cases(server, described, path, mode, CASES)
    assert (200 in counts) == (mode is GenerationMode.POSITIVE), counts


@pytest.mark.parametrize("path", STATUS)
def test_its_status_is_as_it_says(server: ThreadServer, described: Any, path: str) -> None:
    status = 404 if "{" in path else 200  # of a random name
    assert set(check_cases(server, described, path, GenerationMode.POSITIVE, 1)) == {status}


def test_every_route_is_tried(described: Any) -> None:
    assert set(described) == {*ASKING, *STATUS}


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", ASKING)
def test_the_server_does_as_it_says_many_times(
    server: ThreadServer, described: Any, path: str, mode: GenerationMode
) -> None:
    print(path, mode.value, check_cases(server, described, path, mode, MANY_CASES))
