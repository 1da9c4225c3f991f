"""What the HTTP half of the server may be told. All limits are finite."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from poot_executor.errors import SettingsError


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Raises SettingsError naming the field that is out of range. Times are in seconds.

    - `host`, `port`: where to listen; port 0 takes a free one.
    - `names`: what the model may be called in requests; answers have the first. Empty: the checkpoint's name.
    - `api_keys`: one of them must be given as a bearer token; empty asks for none.
    - `origins`: pages of these origins may use the server from a browser; "*" is all of them.
    - `hosts`: names that the header Host may hold where the server listens on loopback alone, beside localhost and
      addresses: otherwise a page whose name was rebound to this machine could use the server.
    - `requests_per_minute`: POSTs of one key, or of one address without keys; 0 is without a limit.
    - `head_bytes`, `body_bytes`, `connections`: more is refused. `head_seconds`, `body_seconds`: for either to come.
    - `write_seconds`: for a reader to take what was written. `idle_seconds`: for the next request of a connection.
    - `comment_seconds`: after so long without a word, a stream gets a comment.
    - `drain_seconds`: for open requests to end once the server is told to.
    - `traces`: the URL of what takes OpenTelemetry's traces; None sends none.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    requests_per_minute: int = 0
    head_bytes: int = 64 << 10
    body_bytes: int = 16 << 20
    connections: int = 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    idle_seconds: float = 75.0
    comment_seconds: float = 10.0
    drain_seconds: float = 30.0
    traces: str | None = None

    def __post_init__(self) -> None:
        wholes = {"port": (0, 65535), "requests_per_minute": (0, 1 << 31), "head_bytes": (1024, 1 << 24),
                  "body_bytes": (1024, 1 << 32), "connections": (1, 1 << 20)}  # fmt: skip
        for name, (least, most) in wholes.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise SettingsError(f"{name} is {value!r}: a whole number from {least} to {most}")
        for name in ("head", "body", "write", "idle", "comment", "drain"):
            value = getattr(self, f"{name}_seconds")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise SettingsError(f"{name}_seconds is {value!r}: a positive, finite number of seconds")
        if self.traces is not None and not self.traces.startswith(("http://", "https://")):
            raise SettingsError(f"traces is {self.traces!r}: the URL of what takes them, http:// or https://")
        if any(not name for name in self.names) or len(set(self.names)) < len(self.names):
            raise SettingsError("names: each is a name of its own, and none is empty")
        if any(len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key for key in self.api_keys):
            raise SettingsError("api_keys: each has 8 or more printable ASCII characters and no space")

    @property
    def loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
