"""The chat page in a real browser, talking to SmolLM2."""

from __future__ import annotations

import re
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]


def test_a_conversation(browser, url, metric, screenshots) -> None:
    page = browser.new_page()
    page.set_default_timeout(300_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.locator("#state", has_text="ready").wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "smollm2"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()

    def ask(text: str) -> None:
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")

    ask("What is the capital of France?")
    page.get_by_role("button", name="Regenerate").wait_for()
    answer = page.locator(".turn.assistant").last
    assert "Paris" in answer.locator(".text").inner_text()
    assert re.search(r"^\d+ tokens · [\d.]+ tokens/s · first after", answer.locator(".foot span").inner_text())
    page.screenshot(path=screenshots / "live.png")

    before = metric("poot_requests_cancelled_total")
    ask("Tell me a long story.")
    page.locator(".turn.assistant").last.locator(".text p").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert "stopped" in page.locator(".turn.assistant").last.locator(".foot").inner_text()
    deadline = time.monotonic() + 240
    while metric("poot_requests_cancelled_total") != before + 1:
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    page.close()
    assert wrong == []
