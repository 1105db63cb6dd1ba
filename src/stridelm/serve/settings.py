"""The server's settings; the options of the command line derive from them."""

import re
from dataclasses import dataclass, field

from stridelm.params import InputError

_SPARE = 256


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where the server listens, and its limits."""

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 can be reached from other machines, and should have an --api-key."""
    port: int = 8000
    """The port to listen on; 0 takes a free one and prints it."""
    api_key: str | None = field(default=None, metadata={"environment": "STRIDELM_API_KEY"})
    """Required of every request except for /health and the playground's page, as `Authorization: Bearer KEY` or
    `x-api-key: KEY`. Better set as STRIDELM_API_KEY: other users of the machine can read command lines."""
    served_model_name: tuple[str, ...] = ()
    """The model's name in requests and replies; with several, requests may use any, and metrics use the first. Default:
    the name it was loaded by, without its folder."""
    any_model_name: bool = False
    """Accept requests for models of other names, too, as if they asked for this one."""
    cors_origin: tuple[str, ...] = ()
    """A site, as in https://example.org, whose pages may use this server from a browser; '*' allows all sites."""
    max_queue: int = 256
    """Maximum number of requests that wait for their first step; further ones get 429."""
    max_sequences: int = 64
    """Maximum number of answers written at the same time."""
    grace: float = 30.0
    """Seconds that open answers have to finish after SIGTERM."""
    max_body: int = 4 * 2**20
    """Maximum size of a request's body in bytes; larger ones get 413."""
    max_n: int = 16
    """Maximum number of answers to one request."""
    max_stop: int = 16
    """Maximum number of stop strings per request, of at most 256 characters each."""
    max_schema: int = 64 * 2**10
    """Maximum size of a JSON schema in bytes; those of all tools of a request count together."""
    max_schema_depth: int = 32
    """Maximum nesting depth of a JSON schema."""
    grammar_seconds: float = 5.0
    """Maximum number of seconds that a schema may take to compile."""
    send_seconds: float = 30.0
    """A client that reads nothing of its reply for this many seconds is disconnected."""

    @property
    def most_requests(self) -> int:
        """Maximum number of open requests: running ones, waiting ones, and some that are being refused."""
        return self.max_queue + self.max_sequences + _SPARE

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"port must be between 0 (any free one) and 65535, not {self.port}")
        if self.api_key is not None and not self.api_key.strip():
            raise InputError("api_key is empty: give one, or leave the option out")
        for name in ("served_model_name", "cors_origin"):
            if not all(value.strip() for value in getattr(self, name)):
                raise InputError(f"{name} is empty: give one, or leave the option out")
        for origin in self.cors_origin:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise InputError(f"cors_origin must be like https://example.org, or '*', not {origin!r}")
        counts = ("max_queue", "max_sequences", "max_body", "max_n", "max_stop", "max_schema", "max_schema_depth")
        for name in counts:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_sequences > 1024:
            raise InputError(f"max_sequences must be at most 1024, not {self.max_sequences}")
        for name in ("grace", "grammar_seconds", "send_seconds"):
            if not 0 <= getattr(self, name) <= 3600:
                raise InputError(f"{name} must be between 0 and 3600 seconds, not {getattr(self, name)}")
        if self.send_seconds == 0:
            raise InputError("send_seconds must be more than 0: clients need some time to read")
