"""Which models may be asked for, and which sites may ask from a browser."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from asking import CHAT, TEXT, Scripted, chat, chunks, make_context, refusal, text
from assembly import assembled
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.serve.app import create_app
from stridelm.serve.lifecycle import make_context as make_real_context
from stridelm.serve.settings import ServeSettings
from stridelm.settings import LoadSettings

NAMES = ("first", "org/second", "gpt-4o")
BODIES: dict[str, Callable[..., dict[str, Any]]] = {CHAT: chat, TEXT: text}
SITE = "https://example.org"
KEY = "a key"


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Any]) -> LanguageModel:
    return assembled(tiny("llama"), None, LoadSettings(cache_tokens=512))


@contextmanager
def served(model: LanguageModel, **settings: Any) -> Iterator[TestClient]:
    """The whole app, with all that requests pass first, and a model that always says the same."""
    worker = Scripted("Yes.")
    worker.add_observer = lambda observer: None  # type: ignore[attr-defined]
    with TestClient(create_app(make_context(model, ServeSettings(**settings), worker=worker))) as client:
        yield client


# Names


def test_a_model_goes_by_any_of_its_names(model: LanguageModel) -> None:
    with served(model, served_model_name=NAMES) as client:
        for path, body in BODIES.items():
            for name in NAMES:
                assert client.post(path, json=body(model=name)).json()["model"] == name
                sent = chunks(client.post(path, json=body(model=name, stream=True)))
                assert {chunk["model"] for chunk in sent} == {name}
            assert client.post(path, json=body(model=None)).json()["model"] == "first"
            for other in ("tiny", "First", "first ", "", "second", "org"):
                error = refusal(client.post(path, json=body(model=other)), 404)
                assert error["param"] == "model" and error["code"] == "model_not_found"
                assert "first or org/second or gpt-4o" in error["message"]
        assert client.post("/tokenize", json={"model": "gpt-4o", "prompt": "x"}).json()["count"] == 1
        assert refusal(client.post("/detokenize", json={"model": "tiny", "tokens": []}), 404)["param"] == "model"


def test_the_names_are_listed(model: LanguageModel) -> None:
    with served(model, served_model_name=NAMES) as client:
        listed = client.get("/v1/models").json()
        assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == list(NAMES)
        for card in listed["data"]:
            assert client.get(f"/v1/models/{card['id']}").json() == card
            assert card["object"] == "model" and card["max_model_len"] == 512
        assert client.get("/v1/models/org%2Fsecond").json()["id"] == "org/second"
        for other in ("tiny", "org", "org/second/", "second", "first/second", ""):
            error = refusal(client.get(f"/v1/models/{other}"), 404)
            assert error["type"] == "invalid_request_error"
        assert refusal(client.get("/v1/models/tiny"), 404)["code"] == "model_not_found"


def test_any_name_may_be_taken_for_the_model(model: LanguageModel) -> None:
    with served(model, served_model_name=NAMES[:2], any_model_name=True) as client:
        for path, body in BODIES.items():
            for name in ("gpt-7", "an/other", "x" * 1024, ""):
                reply = client.post(path, json=body(model=name))
                assert reply.status_code == 200 and reply.json()["model"] == "first"
            assert client.post(path, json=body(model="org/second")).json()["model"] == "org/second"
            assert refusal(client.post(path, json=body(model="x" * 1025)))["param"] == "model"
        assert client.get("/v1/models/an/other").json()["id"] == "an/other"
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["first", "org/second"]
        assert client.post("/tokenize", json={"model": "gpt-7", "prompt": "x"}).status_code == 200


def test_metrics_go_by_the_first_name(model: LanguageModel) -> None:
    with TestClient(create_app(make_context(model, ServeSettings(served_model_name=NAMES)))) as client:
        found = client.get("/metrics").text
    assert 'model_name="first"' in found and "org/second" not in found


def test_a_model_without_given_names_goes_by_its_own(model: LanguageModel) -> None:
    assert make_real_context(model, ServeSettings(), "own").names == ("own",)
    assert make_real_context(model, ServeSettings(served_model_name=NAMES), "own").names == NAMES


@pytest.mark.parametrize("name", ["served_model_name", "cors_origin"])
def test_names_that_are_empty_are_refused(name: str) -> None:
    for values in (("",), (" ",), ("https://a", "")):
        with pytest.raises(InputError, match=name):
            ServeSettings(**{name: values})  # type: ignore[arg-type]


# Sites


def preflight(client: TestClient, path: str = CHAT, origin: str = SITE, method: str = "POST") -> Any:
    """What a browser asks before a page may ask."""
    asked = {"access-control-request-method": method, "access-control-request-headers": "authorization,content-type"}
    return client.options(path, headers={"origin": origin} | asked)


def allowed(reply: Any) -> str | None:
    return reply.headers.get("access-control-allow-origin")


def test_pages_of_other_sites_are_kept_out_by_default(model: LanguageModel) -> None:
    with served(model) as client:
        asked = preflight(client)
        assert asked.status_code == 405 and allowed(asked) is None
        for reply in (
            client.post(CHAT, json=chat(), headers={"origin": SITE}),
            client.get("/v1/models", headers={"origin": SITE}),
        ):
            assert reply.status_code == 200
            assert not any(name.startswith("access-control") for name in reply.headers)


def test_a_page_of_a_named_site_may_ask(model: LanguageModel) -> None:
    with served(model, cors_origin=(SITE, "http://localhost:3000")) as client:
        for origin in (SITE, "http://localhost:3000"):
            asked = preflight(client, origin=origin)
            assert asked.status_code == 200 and allowed(asked) == origin
            assert {"GET", "POST"} <= set(asked.headers["access-control-allow-methods"].split(", "))
            assert "authorization" in asked.headers["access-control-allow-headers"].lower()
            for reply in (
                client.post(CHAT, json=chat(), headers={"origin": origin}),
                client.post(CHAT, json=chat(stream=True), headers={"origin": origin}),
                client.get("/v1/models", headers={"origin": origin}),
            ):
                assert reply.status_code == 200 and allowed(reply) == origin
                assert "x-request-id" in reply.headers["access-control-expose-headers"]
            refused = client.post(CHAT, json=chat(model="other"), headers={"origin": origin})
            assert refused.status_code == 404 and allowed(refused) == origin


def test_pages_of_others_get_nothing(model: LanguageModel) -> None:
    with served(model, cors_origin=(SITE,)) as client:
        for origin in ("https://example.com", "http://example.org", f"{SITE}.evil", f"{SITE}:8080", "null"):
            asked = preflight(client, origin=origin)
            assert asked.status_code == 400 and allowed(asked) is None
            assert allowed(client.post(CHAT, json=chat(), headers={"origin": origin})) is None
        assert allowed(client.get("/v1/models")) is None  # not a page at all
        assert preflight(client, method="DELETE").status_code == 400


def test_all_sites_may_be_let_in(model: LanguageModel) -> None:
    with served(model, cors_origin=("*",)) as client:
        assert allowed(preflight(client, origin="https://any.where")) == "*"
        reply = client.post(CHAT, json=chat(), headers={"origin": "https://any.where"})
        assert reply.status_code == 200 and allowed(reply) == "*"
        # Else a page could ask in the name of whoever looks at it.
        assert "access-control-allow-credentials" not in reply.headers


def test_the_question_needs_no_key_and_the_request_does(model: LanguageModel) -> None:
    with served(model, cors_origin=(SITE,), api_key=KEY) as client:
        asked = preflight(client)
        assert asked.status_code == 200 and allowed(asked) == SITE
        without = client.post(CHAT, json=chat(), headers={"origin": SITE})
        assert refusal(without, 401)["code"] == "invalid_api_key"
        assert allowed(without) == SITE  # so that the page can read why
        known = {"origin": SITE, "authorization": f"Bearer {KEY}"}
        reply = client.post(CHAT, json=chat(), headers=known)
        assert reply.status_code == 200 and allowed(reply) == SITE
        # What only looks like such a question is none.
        assert client.options(CHAT, headers={"origin": SITE}).status_code == 401
        assert client.options(CHAT, headers={"access-control-request-method": "POST"}).status_code == 401
    with served(model, api_key=KEY) as client:
        assert preflight(client).status_code == 401


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/", "https://example.org/x", "https://", "*.org"]
)
def test_what_is_no_site_is_refused(origin: str) -> None:
    with pytest.raises(InputError, match="cors_origin must be like"):
        ServeSettings(cors_origin=(origin,))
