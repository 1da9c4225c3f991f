"""`python -m poot_serve.engine.child`: an engine process. Its standard input and output belong to the server that
started it: settings and messages come in, reports go out, and the end of the input ends it.

Status: 0; 1 where the engine was lost or could not be opened, which it has said; 3 where it hung as the server went.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from queue import SimpleQueue
from threading import Thread
from typing import Any

from poot_executor.errors import DeviceError, PootError
from poot_llm.driver import Driver
from poot_serve.engine.encode_loop import EncodeLoop
from poot_serve.engine.frames import read_frame
from poot_serve.engine.loop import Loop
from poot_serve.engine.messages import Close, Lost, Ready, Report
from poot_serve.engine.outbox import Outbox
from poot_serve.engine.serving import open_serving
from poot_serve.engine.settings import EngineSettings
from poot_serve.engine.stats import EngineStats

END_SECONDS = 10.0
"""How long an engine may take to end once its server has gone."""
LOST, HUNG = 1, 3


def main() -> int:
    """Serve until the server says that it is enough, or goes."""
    # The server decides when to end: what a terminal or a service manager sends to the whole group is for it.
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    incoming, outbox = os.dup(0), Outbox(_take_output())
    try:
        settings: EngineSettings = read_frame(incoming)
    except EOFError:
        return 0
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(incoming, inbox), name="poot-inbox", daemon=True).start()
    try:
        with open_serving(settings) as (driver, facts):
            try:
                _loop(driver, settings, inbox, outbox).run(Ready(facts))
            except BaseException as error:
                # Said at once: to close a device that is lost may take its time, or never end.
                _say(outbox, error, refused=False)
                raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, the server is told
        _say(outbox, error, refused=isinstance(error, PootError) and not _of_device(error))
        return LOST
    finally:
        outbox.close(END_SECONDS)
    return 0


def _loop(driver: Driver, settings: EngineSettings, inbox: SimpleQueue[Any], outbox: Outbox) -> Loop | EncodeLoop:
    if not driver.handle.generates:
        return EncodeLoop(driver, inbox, outbox.send)
    return Loop(
        driver,
        inbox,
        outbox.send,
        prefill_tokens=settings.prefill_tokens,
        prepared=settings.prepare_all,
        guides=settings.guides,
    )


def _say(outbox: Outbox, error: BaseException, *, refused: bool) -> None:
    """Tell the server what ended the engine; it reads the first one. What nobody foresaw leaves its traceback."""
    if not isinstance(error, PootError):
        traceback.print_exception(error)
    reason = str(error) or type(error).__name__
    try:
        outbox.send(Report((Lost(type(error).__name__, reason, refused),), EngineStats()))
    except PootError:
        return  # nobody listens


def _of_device(error: BaseException | None) -> bool:
    """Whether a device's fault is behind an error: another process may be luckier."""
    while error is not None and not isinstance(error, DeviceError):
        error = error.__cause__
    return error is not None


def _receive(incoming: int, inbox: SimpleQueue[Any]) -> None:
    """Read messages until there are no more; then the process ends, also where the loop waits for a device."""
    try:
        while True:
            inbox.put(read_frame(incoming))
    except (EOFError, OSError):
        inbox.put(Close())
    time.sleep(END_SECONDS)
    os._exit(HUNG)


def _take_output() -> int:
    """The standard output for reports alone: what anything else prints goes to the standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of compilers and drivers are not waited for.
    os._exit(status)
