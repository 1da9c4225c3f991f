"""What an engine process opens: a device, and a driver or an encoder on it, with every step prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from poot_executor.discover import open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.driver import Driver
from poot_llm.encoders import Encoder, EncoderHandle
from poot_llm.opening import open_driver
from poot_llm.registry import ModelHandle
from poot_serve.engine.checkpoint import open_checkpoint
from poot_serve.engine.messages import EngineFacts
from poot_serve.engine.settings import EngineSettings


@contextmanager
def open_serving(settings: EngineSettings) -> Iterator[tuple[Driver | Encoder, EngineFacts]]:
    """Raises what opening the checkpoint and the device raises, and what cannot be prepared by name."""
    handle = open_checkpoint(settings.model)
    opening = _encoder if isinstance(handle, EncoderHandle) else _driver
    with opening(handle, settings) as opened:
        yield opened


@contextmanager
def _driver(handle: ModelHandle, settings: EngineSettings) -> Iterator[tuple[Driver, EngineFacts]]:
    started = perf_counter()
    with open_driver(handle, settings.device, settings.driver) as opened:
        driver, plan = opened.driver, opened.driver.plan
        if settings.prepare_all:
            driver.prepare()
        yield (
            driver,
            EngineFacts(
                model=handle.name,
                device=str(opened.choice),
                encodes=False,
                rows=driver.rows,
                capacity=driver.capacity,
                vocabulary=handle.config.vocabulary,
                blocks=plan.blocks,
                weight_bytes=plan.weight_bytes,
                kv_bytes=plan.kv_bytes,
                load_seconds=perf_counter() - started,
                prepare_seconds=driver.prepare_seconds,
                steps=len(driver.prepared),
                given_up="; ".join(plan.notes),
            ),
        )


@contextmanager
def _encoder(handle: EncoderHandle, settings: EngineSettings) -> Iterator[tuple[Encoder, EngineFacts]]:
    started = perf_counter()
    device, choice = open_device(settings.device, read_settings().device)
    with device, Engine(device) as engine, Encoder(handle, engine, settings.encoder) as encoder:
        opened = perf_counter()
        if settings.prepare_all:
            encoder.prepare()
        now = perf_counter()
        names = set(handle.weight_map.values())
        yield (
            encoder,
            EngineFacts(
                model=handle.name,
                device=str(choice),
                encodes=True,
                rows=encoder.options.rows,
                capacity=handle.limit,
                vocabulary=handle.config.vocabulary,
                blocks=None,
                weight_bytes=sum(handle.store.tensor(name).data.nbytes for name in names),
                kv_bytes=0,
                load_seconds=now - started,
                prepare_seconds=now - opened,
                steps=len(encoder.shapes) if settings.prepare_all else 0,
            ),
        )
