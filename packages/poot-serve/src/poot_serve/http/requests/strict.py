"""The base of every body: no field but the declared ones, no conversion of one type to another, only finite numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=())


def _absent(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("not_offered", "this server does not offer it: leave it out")
    return value


NotOffered = SkipJsonSchema[Annotated[None, BeforeValidator(_absent)]]
"""A field of OpenAI's that poot does not offer: known by name, refused unless it is null."""
