"""Conversations on the page, in a real browser, with a server whose answers the test writes down."""

from __future__ import annotations

import re
import threading

import pytest

pytestmark = pytest.mark.slow  # all of them together


def ask(page, text):
    """Type a message and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def last(page):
    """The last answer."""
    return page.locator(".turn.assistant").last


def done(page, button="Regenerate"):
    """Wait until the last answer is over."""
    last(page).get_by_role("button", name=button).wait_for()
    return last(page)


def contents(body):
    return [(message["role"], message["content"]) for message in body["messages"]]


def test_an_answer_streams(page, scripted, screenshots) -> None:
    go_on = threading.Event()
    steps = [scripted.piece("The capital of "), scripted.piece("France"), go_on, scripted.piece(" is **Paris**.")]
    scripted.streams(*steps, *scripted.end(9))
    ask(page, "What is the capital of France?")
    last(page).get_by_text("The capital of France").wait_for()
    assert last(page).get_attribute("aria-busy") == "true"
    assert page.get_by_role("button", name="Stop").is_visible()
    assert not page.get_by_role("button", name="Send").is_visible()
    page.screenshot(path=screenshots / "streaming-light.png")
    go_on.set()
    answer = done(page)
    assert answer.locator(".text").inner_text() == "The capital of France is Paris."
    assert answer.locator("strong").inner_text() == "Paris"
    assert answer.get_attribute("aria-busy") is None
    assert re.search(r"^9 tokens · [\d.]+ tokens/s · first after [\d.]+ s$", answer.locator(".foot span").inner_text())
    assert page.get_by_role("button", name="Send").is_visible()
    (body,) = scripted.bodies
    assert contents(body) == [("user", "What is the capital of France?")]
    assert body["model"] == "smollm2"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert set(body) == {"messages", "model", "stream", "stream_options"}


def test_turns_follow_each_other(page, scripted) -> None:
    scripted.says("First", " answer")
    ask(page, "one")
    done(page)
    scripted.says("Second answer")
    ask(page, "two")
    last(page).get_by_text("Second answer").wait_for()
    done(page)
    assert contents(scripted.bodies[1]) == [("user", "one"), ("assistant", "First answer"), ("user", "two")]
    assert page.get_by_role("button", name="Regenerate").count() == 1
    assert page.locator("#turns > li").count() == 4


def test_stop_ends_the_request_and_keeps_what_was_said(page, scripted) -> None:
    never = threading.Event()
    answer = scripted.streams(scripted.piece("Half of an"), never)
    ask(page, "one")
    last(page).get_by_text("Half of an").wait_for()
    page.get_by_role("button", name="Stop").click()
    done(page)
    assert answer.gone.wait(5)
    assert "stopped" in last(page).locator(".foot").inner_text()
    scripted.says("More")
    ask(page, "two")
    last(page).get_by_text("More").wait_for()
    assert contents(scripted.bodies[1]) == [("user", "one"), ("assistant", "Half of an"), ("user", "two")]


def test_escape_stops_before_the_first_token(page, scripted) -> None:
    answer = scripted.streams(threading.Event())
    ask(page, "one")
    page.get_by_role("button", name="Stop").wait_for()
    page.keyboard.press("Escape")
    done(page)
    assert answer.gone.wait(5)
    assert last(page).locator(".text").inner_text() == ""


def test_regenerate_asks_again_for_the_last_answer(page, scripted) -> None:
    scripted.says("First")
    ask(page, "one")
    scripted.says("Second")
    done(page).get_by_role("button", name="Regenerate").click()
    last(page).get_by_text("Second").wait_for()
    done(page)
    assert contents(scripted.bodies[1]) == contents(scripted.bodies[0]) == [("user", "one")]
    assert page.locator(".turn.assistant").count() == 1


def test_a_new_chat_forgets_the_old_one_even_while_it_is_answered(page, scripted) -> None:
    answer = scripted.streams(scripted.piece("Half"), threading.Event())
    ask(page, "one")
    last(page).get_by_text("Half").wait_for()
    page.get_by_role("button", name="New chat").click()
    assert answer.gone.wait(5)
    assert page.locator("#turns > li").count() == 0
    scripted.says("Fresh")
    page.get_by_role("button", name="Send").wait_for()
    ask(page, "two")
    last(page).get_by_text("Fresh").wait_for()
    assert contents(scripted.bodies[1]) == [("user", "two")]


def test_the_finish_reason_is_told(page, scripted) -> None:
    scripted.says("Cut", finish="length")
    ask(page, "one")
    assert "cut off at the most tokens" in done(page).locator(".foot").inner_text()


def test_characters_may_come_in_parts(page, scripted) -> None:
    """A chunk of the network may end inside a character, a line, or the end of a line."""
    text = "día 👩‍🚀 日本"
    raw = f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{text}"}}}}]}}\r\n\r\n'.encode()
    scripted.streams(*[raw[place : place + 1] for place in range(len(raw))], *scripted.end(6))
    ask(page, "one")
    assert done(page).locator(".text").inner_text() == text


def test_an_event_may_have_several_lines_and_comments(page, scripted) -> None:
    raw = b': keep-alive\n\nevent: x\ndata: {"choices": [{"index": 0,\ndata:"delta": {"content": "joined"}}]}\n\n'
    scripted.streams(raw, *scripted.end(1))
    ask(page, "one")
    assert done(page).locator(".text").inner_text() == "joined"


def test_without_counts_the_page_says_about(page, scripted) -> None:
    scripted.streams(scripted.piece("a"), scripted.piece("b"), scripted.piece(None, "stop"), "[DONE]")
    ask(page, "one")
    assert done(page).locator(".foot span").inner_text().startswith("about 2 tokens")


def test_the_view_follows_new_text_unless_the_reader_looks_elsewhere(page, scripted) -> None:
    paragraphs = "\n\n".join(f"Paragraph {number}." for number in range(60))
    go_on, more = threading.Event(), threading.Event()
    scripted.streams(
        scripted.piece(paragraphs), go_on, scripted.piece("\n\nLower."), more,
        scripted.piece("\n\nLowest."), *scripted.end(3),
    )  # fmt: skip
    ask(page, "one")
    last(page).get_by_text("Paragraph 59.").wait_for()
    main = page.locator("main")
    assert main.evaluate("it => it.scrollHeight - it.scrollTop - it.clientHeight") < 5
    go_on.set()
    last(page).get_by_text("Lower.").wait_for()
    assert main.evaluate("it => it.scrollHeight - it.scrollTop - it.clientHeight") < 5
    main.evaluate("it => { it.scrollTop = 0; }")
    more.set()
    done(page)
    assert main.evaluate("it => it.scrollTop") == 0


def test_an_answer_can_be_copied_as_it_was_written(page, scripted) -> None:
    text = "Use **this**:\n\n```python\nprint(1)\n```"
    scripted.says(text)
    ask(page, "one")
    done(page).locator(".foot").get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == text
    last(page).locator("figure").get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


def test_the_model_is_chosen_from_those_that_are_served(page, scripted) -> None:
    scripted.models = ["smollm2", "other"]
    page.reload()
    page.get_by_label("Model", exact=True).select_option("other")
    scripted.says("Yes")
    ask(page, "one")
    done(page)
    assert scripted.bodies[0]["model"] == "other"
