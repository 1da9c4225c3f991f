"""What every route has: the engine, the settings, prompts, counts, and the names by which the model goes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from poot_serve.engine.client import EngineClient
from poot_serve.engine.errors import NotReady
from poot_serve.engine.messages import EngineFacts
from poot_serve.http.errors import ApiError
from poot_serve.http.metrics import Metrics
from poot_serve.http.prompts import Prompts
from poot_serve.http.settings import HttpSettings


@dataclass(frozen=True, slots=True)
class Service:
    """`prompts` is None where the model is an encoder. `created` is when the server began, in seconds since 1970."""

    client: EngineClient
    settings: HttpSettings
    metrics: Metrics
    names: tuple[str, ...]
    prompts: Prompts | None
    created: int

    @classmethod
    def of(cls, client: EngineClient, settings: HttpSettings) -> Service:
        """A service over a client that may not have been started yet."""
        names = settings.names or (client.handle.name,)
        prompts = Prompts(client.handle) if client.handle.generates else None
        return cls(client, settings, Metrics(client, names), names, prompts, int(time.time()))

    @property
    def facts(self) -> EngineFacts:
        """What the engine serves with. Raises NotReady before it was ready once."""
        facts = self.client.facts
        if facts is None:
            raise NotReady(self.client.state.reason or "the model is being loaded", 5)
        return facts

    @property
    def generator(self) -> Prompts:
        """Prompts of a model that generates. Raises ApiError where it is an encoder."""
        if self.prompts is None:
            name = self.names[0]
            raise ApiError(400, f"{name} is an encoder: it answers /v1/embeddings or /v1/rerank",
                           code="unsupported_capability")  # fmt: skip
        return self.prompts

    def require_encoder(self) -> None:
        """Raises ApiError where the model generates: its engine encodes no texts."""
        if self.prompts is not None:
            raise ApiError(
                400,
                f"{self.names[0]} generates: it answers /v1/chat/completions, and an encoder this route",
                code="unsupported_capability",
            )

    def model(self, asked: str | None) -> str:
        """The model's name as a request calls it. Raises ApiError 404 for another one."""
        if asked is None:
            return self.names[0]
        if asked not in self.names:
            raise ApiError(404, f"model: there is no {asked[:100]!r} here; served is {', '.join(self.names)}",
                           param="model", code="model_not_found")  # fmt: skip
        return asked
