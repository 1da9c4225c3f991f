"""Answer OpenAI's requests over HTTP: `poot serve MODEL`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from poot_executor.errors import PootError, SettingsError
from poot_llm.cli.offer import model_or_offer
from poot_llm.cli.output import note
from poot_llm.cli.parser import Parser, add_device, add_model, add_shape, whole
from poot_llm.driver import DriverOptions
from poot_serve.engine.settings import EngineSettings
from poot_serve.http.settings import HttpSettings

_HTTP, _ENGINE = HttpSettings(), EngineSettings("")
REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, where to listen, who may ask, what to run on."""
    add_model(parser)
    add_device(parser)
    add_shape(parser)
    parser.add_argument(
        "--rows",
        type=whole,
        metavar="N",
        help="answers at once (default: 16; fewer where steps have their own weights and do not fit)",
    )
    parser.add_argument("--queue", type=whole, default=_ENGINE.queue, metavar="N",
                        help=f"requests that may wait for a row (default: {_ENGINE.queue})")  # fmt: skip
    parser.add_argument("--request-seconds", type=float, default=_ENGINE.request_seconds, metavar="S",
                        help=f"the longest a request may take (default: {_ENGINE.request_seconds:g})")  # fmt: skip
    parser.add_argument("--lazy", action="store_true",
                        help="be ready sooner: compile a step when it is first needed, while others wait")  # fmt: skip
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default=_HTTP.host, help=f"the address to listen at (default: {_HTTP.host})")
    group.add_argument("--port", type=int, default=_HTTP.port, help=f"0 takes a free one (default: {_HTTP.port})")
    group.add_argument("--name", action="append", default=[], metavar="NAME",
                       help="what requests may call the model, answers the first; repeatable")  # fmt: skip
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one a line: requests must have one")
    group.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN",
                       help="an origin whose pages may use the server, * is any; repeatable")  # fmt: skip
    group.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                       help="a name of this machine that requests may use, on loopback; repeatable")  # fmt: skip
    group.add_argument("--requests-per-minute", type=int, default=0, metavar="N",
                       help="of one key or address (default: 0, any number)")  # fmt: skip
    group.add_argument("--body-bytes", type=whole, default=_HTTP.body_bytes, metavar="N",
                       help=f"the largest body (default: {_HTTP.body_bytes})")  # fmt: skip
    group.add_argument("--drain-seconds", type=float, default=_HTTP.drain_seconds, metavar="S",
                       help=f"for open requests after SIGTERM (default: {_HTTP.drain_seconds:g})")  # fmt: skip
    group.add_argument(
        "--traces", metavar="URL", help="send OpenTelemetry's traces there, with the extra poot-serve[traces]"
    )
    group.add_argument("--log", choices=("text", "json"), help="(default: text on a terminal, json elsewhere)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises PootError for what is refused, and what ends the server."""
    http = http_settings(arguments)
    engine = engine_settings(arguments)
    # Imported here: --help shall not wait for them.
    from poot_serve.engine.client import EngineClient
    from poot_serve.http.log import write_logs
    from poot_serve.http.server import listening, serve

    write_logs(arguments.log or ("text" if sys.stderr.isatty() else "json"))
    bound = listening(http)
    try:
        client = EngineClient(engine)
        if not http.loopback and not http.api_keys:
            note(f"{http.host} can be reached from other machines, and no key is asked for: see --api-key-file")
        asyncio.run(serve(client, http, bound))
    finally:
        bound.close()
    return 0


def http_settings(arguments: argparse.Namespace) -> HttpSettings:
    """The HTTP options. Raises SettingsError by name."""
    return HttpSettings(
        host=arguments.host,
        port=arguments.port,
        names=tuple(arguments.name),
        api_keys=_keys(arguments.api_key_file),
        origins=tuple(arguments.allow_origin),
        hosts=tuple(name.lower() for name in arguments.allow_host),
        requests_per_minute=arguments.requests_per_minute,
        body_bytes=arguments.body_bytes,
        drain_seconds=arguments.drain_seconds,
        traces=arguments.traces,
    )


def engine_settings(arguments: argparse.Namespace) -> EngineSettings:
    """The options of the engine. Raises SettingsError by name."""
    driver: DriverOptions = _ENGINE.driver
    given = {name: getattr(arguments, name) for name in ("rows", "capacity", "chunk")}
    driver = replace(driver, **{name: value for name, value in given.items() if value is not None})
    return EngineSettings(
        model_or_offer(arguments.model),
        device=arguments.device,
        driver=driver,
        fit_rows=arguments.rows is None,
        queue=arguments.queue,
        request_seconds=arguments.request_seconds,
        prepare_all=not arguments.lazy,
    )


def _keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise SettingsError(f"--api-key-file {path}: {error}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise SettingsError(f"--api-key-file {path}: it has no key")
    return keys


def main(argv: Sequence[str] | None = None) -> int:
    """The script `poot-serve`."""
    parser = Parser(prog="poot-serve", description="Answer OpenAI's requests over HTTP.")
    try:
        add_arguments(parser)
        return run(parser.parse_args(argv))
    except KeyboardInterrupt:
        return 130
    except PootError as error:
        sys.stderr.write(f"poot-serve: {' '.join(str(error).split())}\n")
        return REFUSED
