"""The bodies of POST /v1/embeddings and POST /v1/rerank."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from poot_serve.http.requests.completions import Ids
from poot_serve.http.requests.strict import NotOffered, Strict, Timeout

MOST_TEXTS = 2048
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]


class EmbeddingsRequest(Strict):
    """Texts, or token ids, to vectors."""

    model: str | None = None
    input: Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=MOST_TEXTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: NotOffered = None
    user: str | None = None
    timeout: Timeout | None = None


class RerankRequest(Strict):
    """A query, and the documents to put in order, best first."""

    model: str | None = None
    query: Text
    documents: Texts
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    user: str | None = None
    timeout: Timeout | None = None
