"""Who may ask, by name, key and rate. All of it is decided from a request's head."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.types import Scope

from poot_serve.http.errors import AUTHENTICATION, RATE_LIMIT, ApiError
from poot_serve.http.settings import HttpSettings

MINUTE = 60.0
MOST_WINDOWS = 65536
"""Keys or addresses whose requests are counted at once; the oldest are forgotten."""
OPEN = frozenset({"/health", "/ready", "/metrics", "/", "/openapi.json"})
"""Paths that need no key."""


class Access:
    """Raises ApiError for what may not pass."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raises ApiError: 403 for a name that is not this server's, 401 without a key, 429 beyond the rate."""
        if self._settings.loopback and not self._keys:
            self._check_host(headers)
        path = scope["path"]
        needs_key = not (path in OPEN or path.startswith("/page/"))
        who = self._checked_key(headers) if self._keys and needs_key and scope["method"] != "OPTIONS" else ""
        if self._settings.requests_per_minute and scope["method"] == "POST":
            self._check_rate(who or (scope.get("client") or ("unknown",))[0])

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if name.lower() in ("", "localhost", *self._settings.hosts) or _is_address(name):
            return
        raise ApiError(403, f"Host is {host[:100]!r}: on loopback, a name has to be allowed (--allow-host)",
                       code="host_not_allowed")  # fmt: skip

    def _checked_key(self, headers: Headers) -> str:
        given = headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        sent = key.strip().encode()
        # Every key is compared, in a time that does not depend on where they differ.
        matches = [hmac.compare_digest(sent, one) for one in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(401, "Authorization: a bearer token is needed, a key of this server", kind=AUTHENTICATION,
                           code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})  # fmt: skip
        return key

    def _check_rate(self, who: str) -> None:
        now = time.monotonic()
        began, count = self._windows.pop(who, (now, 0))
        if now - began >= MINUTE:
            began, count = now, 0
        self._windows[who] = began, count + 1
        while len(self._windows) > MOST_WINDOWS:
            self._windows.popitem(last=False)
        most = self._settings.requests_per_minute
        if count >= most:
            left = max(1, round(began + MINUTE - now + 0.5))
            raise ApiError(429, f"more than {most} requests in a minute", kind=RATE_LIMIT, code="rate_limit_exceeded",
                           headers={"Retry-After": f"{left}"})  # fmt: skip


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
