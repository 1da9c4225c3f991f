"""The bodies of POST /v1/embeddings and POST /v1/rerank."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from poot_serve.http.requests.completions import Ids
from poot_serve.http.requests.strict import NotOffered, Strict

MOST_TEXTS = 2048
NonEmpty = Annotated[str, Field(min_length=1)]


class EmbeddingsRequest(Strict):
    """Texts, or token ids, to vectors."""

    model: str | None = None
    input: (
        NonEmpty
        | Annotated[list[NonEmpty], Field(min_length=1, max_length=MOST_TEXTS)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MOST_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: NotOffered = None
    user: str | None = None


class RerankRequest(Strict):
    """A query, and the documents to put in order."""

    model: str | None = None
    query: NonEmpty
    documents: Annotated[list[NonEmpty], Field(min_length=1, max_length=MOST_TEXTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    user: str | None = None
