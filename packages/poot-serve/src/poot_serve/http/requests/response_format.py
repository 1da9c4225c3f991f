"""`response_format`: text, any JSON object, or JSON by a schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from poot_serve.http.requests.strict import Strict


class TextFormat(Strict):
    """Text as it comes."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A schema with its name. It is always followed to the letter, whatever `strict` says."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
