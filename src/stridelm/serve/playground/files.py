"""The playground's page: files that are read once, and headers that forbid everything else."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page runs only its own files and contacts only its own server; text is never interpreted as markup."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, ready to be sent."""

    body: bytes
    kind: str
    tag: str
    """Changes when the file does."""

    def reply(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.tag}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.kind)


def read_page() -> dict[str, PageFile]:
    """All files of the page by the path that they are served under."""
    found: dict[str, PageFile] = {}
    for file in sorted(FOLDER.iterdir()):
        body = file.read_bytes()
        path = "/" if file.name == INDEX else f"/playground/{file.name}"
        found[path] = PageFile(body, _KINDS[file.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found
