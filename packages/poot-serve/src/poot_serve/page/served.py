"""The files of the chat page, with the headers that they are served with.

The page may run its own scripts, use its own styles and talk to its own server, and nothing else: no inline code, no
other host, no frame around it, and no markup out of text (`require-trusted-types-for`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; "
    "script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
MEDIA_TYPES = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file: the path of its URL, its bytes and media type, and the further headers of a 200 and a 304."""

    path: str
    media_type: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """What `If-None-Match` names where the client has it already."""
        return self.headers["ETag"]


def page_files() -> tuple[PageFile, ...]:
    """Every file of the page: the page itself at `/`, what it loads under `/page/`."""
    folder = files("poot_serve.page") / "files"
    return tuple(
        _page_file(entry.name, entry.read_bytes())
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.is_file()
    )


def _page_file(name: str, body: bytes) -> PageFile:
    headers = {
        "Cache-Control": "no-cache",  # kept, and asked about by its ETag: a page is never older than its server
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    path = "/" if name == INDEX else f"/page/{name}"
    return PageFile(path, MEDIA_TYPES[f".{name.rpartition('.')[2]}"], body, MappingProxyType(headers))
