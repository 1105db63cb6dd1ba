"""vLLM's tests of its OpenAI-compatible server against ours. vLLM itself is not installed: what they import of it is a
stand-in, but for the server that they start and the tokenizer that they compare with."""

import importlib
import os
import sys
from typing import Any, ClassVar

import openai
from transformers import AutoTokenizer

from peer_server import running
from stand_ins import stand_in

_OURS = {"--max-num-seqs": "--max-sequences", "--max-model-len": "--cache-tokens", "--api-key": "--api-key"}
"""Options of vLLM, and what says the same here."""


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
        self.host, self.port, self.uds = "127.0.0.1", running(*options), None

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        """It stays for the next file that wants one like it."""

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


def pytest_configure() -> None:
    stand_in("vllm", "torch", "tests.utils", "tests.conftest")
    utils: Any = importlib.import_module("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS = []
    tokenizers: Any = importlib.import_module("vllm.tokenizers")
    tokenizers.get_tokenizer = lambda *_, **__: AutoTokenizer.from_pretrained(os.environ["PEERS_MODEL"])
    version: Any = importlib.import_module("vllm.version")
    version.__dict__["__version__"] = ""
    assert "tests.utils" in sys.modules
