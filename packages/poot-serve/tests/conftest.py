"""A real browser, for the tests of the chat page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCREENSHOTS = Path(__file__).resolve().parents[3] / "artifacts" / "page"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. CI has it; elsewhere its absence is a skip.

    A module's, not the session's: while it is there, playwright's event loop runs in this thread, and no other can.
    """
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "there is no chromium on the path"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # Without a sandbox: containers rarely allow one, and the page is this repository's own.
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of the page are kept; not committed."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
