"""vLLM's tests of its OpenAI-compatible server against ours. vLLM itself is not installed: what they import of it is a
stand-in, but for the server that they start and the tokenizer that they compare with."""

import importlib
import os
from types import SimpleNamespace
from typing import Any, ClassVar

import openai
import pytest
from transformers import AutoTokenizer

from peer_server import running, stop
from stand_ins import stand_in

_OURS = {"--max-num-seqs": "--max-sequences", "--max-model-len": "--cache-tokens", "--api-key": "--api-key"}
"""Options of vLLM, and what says the same here."""
_INT64 = SimpleNamespace(min=-(2**63), max=2**63 - 1)


class RemoteOpenAIServer:
    """In place of the class of this name in vLLM's tests, which starts `vllm serve`."""

    DUMMY_API_KEY: ClassVar[str] = "token-abc123"

    def __init__(self, model: str, vllm_serve_args: list[str], **_: Any) -> None:
        options = ["--served-model-name", model]
        for name, value in zip(vllm_serve_args, [*vllm_serve_args[1:], ""], strict=True):
            if name == "--served-model-name":
                options[1] = value
            elif name in _OURS:
                options += [_OURS[name], value]
        self.options = options
        self.host, self.port, self.uds, self.show_hidden_metrics = "127.0.0.1", running(*options), None, False

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        """The next file may count what its server does."""
        stop(*self.options)

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._client_settings() | settings)

    def get_async_client(self, **settings: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._client_settings() | settings)

    def _client_settings(self) -> dict[str, Any]:
        return {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 60}


class ModelConfig:
    """In place of vLLM's: the tests ask it for the size of the vocabulary."""

    def __init__(self, **_: Any) -> None:
        pass

    def get_vocab_size(self) -> int:
        return len(_tokenizer())


@pytest.fixture(scope="session")
def local_asset_server() -> None:
    """In place of one that serves pictures, to tests that can do without."""


def pytest_configure() -> None:
    from_pretrained = AutoTokenizer.from_pretrained  # the served model's, whatever model a test names
    AutoTokenizer.from_pretrained = lambda *_, **__: from_pretrained(os.environ["PEERS_MODEL"])
    stand_in("vllm", "torch", "tests.utils", "tests.conftest")
    _set("tests.utils", RemoteOpenAIServer=RemoteOpenAIServer, ROCM_EXTRA_ARGS=[])
    _set("vllm.tokenizers", get_tokenizer=lambda *_, **__: _tokenizer())
    _set("vllm.config", ModelConfig=ModelConfig)
    _set("torch", long=None, iinfo=lambda _: _INT64)


def _set(module: str, **names: Any) -> None:
    vars(importlib.import_module(module)).update(names)


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained("")
