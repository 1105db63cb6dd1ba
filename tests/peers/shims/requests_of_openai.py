"""Changes what openai's client sends, below its public methods: whatever a test calls goes through here."""

from collections.abc import Callable
from typing import Any

import openai._base_client as base_client


def change_bodies(change: Callable[[dict[str, Any]], None]) -> None:
    """Let a function edit the JSON of every request for text."""
    client_class: Any = base_client.BaseClient
    build = client_class._build_request

    def build_request(client: object, options: Any, **settings: Any) -> Any:
        if isinstance(options.json_data, dict) and options.url.endswith("completions"):
            change(options.json_data)
        return build(client, options, **settings)

    client_class._build_request = build_request
