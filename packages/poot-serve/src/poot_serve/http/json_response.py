"""JSON as answers are written: text as it is, and no number that JSON does not have."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response


class JsonResponse(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
