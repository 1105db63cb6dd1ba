"""What an operator of the server chooses; the command line derives from it."""

import re
from dataclasses import dataclass, field

from stridelm.params import InputError

_SPARE = 256


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where the server listens, and what it lets through."""

    host: str = "127.0.0.1"
    """The address to listen on; other machines reach 0.0.0.0, which wants an --api-key."""
    port: int = 8000
    """0 takes a free one and says which."""
    api_key: str | None = field(default=None, metadata={"environment": "STRIDELM_API_KEY"})
    """Asked of every request but for /health and the playground's page, as `Authorization: Bearer KEY`. Better given as
    STRIDELM_API_KEY: a command line can be read by others."""
    served_model_name: tuple[str, ...] = ()
    """The model's name in requests and replies; with several, requests may use any, and metrics the first. Default: as
    it was loaded, without the folders it lies in."""
    any_model_name: bool = False
    """Take requests for models of other names, too, as if they asked for this one."""
    cors_origin: tuple[str, ...] = ()
    """A site, as in https://example.org, whose pages may use this server from a browser; '*' lets all of them."""
    max_queue: int = 256
    """Requests that may wait for their first step; more get 429."""
    max_sequences: int = 64
    """Answers written at the same time."""
    grace: float = 30.0
    """Seconds that open answers have to finish after SIGTERM."""
    max_body: int = 4 * 2**20
    """The most bytes of a request; more get 413."""
    max_n: int = 16
    """The most answers to one request."""
    max_stop: int = 16
    """The most stop strings of a request, of 256 characters each."""
    max_schema: int = 64 * 2**10
    """The most bytes of a JSON schema, all tools of a request together."""
    max_schema_depth: int = 32
    """How deep a JSON schema may nest."""
    grammar_seconds: float = 5.0
    """The longest that a schema may take to compile."""
    send_seconds: float = 30.0
    """A client that reads nothing of its reply for so long is cut off."""

    @property
    def most_requests(self) -> int:
        """At the same time: those that answers are written for, those that wait, and some that are being refused."""
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
