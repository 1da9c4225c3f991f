"""The base of every body: no field but the declared ones, no conversion of one type to another, only finite numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=())


def _absent(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("not_offered", "this server does not offer it: leave it out")
    return value


MOST_SECONDS = 86400.0
Timeout = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
"""Seconds that a request may take from when it is handed in, prompt and answer; the server's own limit stays."""

NotOffered = SkipJsonSchema[Annotated[None, BeforeValidator(_absent)]]
"""A field of OpenAI's that poot does not offer: known by name, refused unless it is null."""
