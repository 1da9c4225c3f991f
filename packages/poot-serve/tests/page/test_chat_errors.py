"""What the page does when things go wrong, and with text that means harm."""

from __future__ import annotations

import threading

import pytest

pytestmark = pytest.mark.slow  # all of them together

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "<script>window.hit=1</script>",
    "[x](javascript:window.hit=1)",
    "[x](JaVaScRiPt:window.hit=1)",
    "[x](data:text/html,<script>window.hit=1</script>)",
    "![x](https://elsewhere.example/pixel.png)",
    "`<svg onload=window.hit=1>`",
    "```html\n<iframe srcdoc='<script>parent.hit=1</script>'></iframe>\n```",
    "| <b>a</b> | b |\n| --- | --- |\n| <script>window.hit=1</script> | c |",
    "<style>body{display:none}</style>",
    "javascript:window.hit=1",
)


def ask(page, text):
    """Type a message and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def failed(page):
    """The error of the last answer, once it is there."""
    error = page.locator(".turn.assistant").last.get_by_role("alert")
    error.wait_for()
    return error.inner_text()


def test_text_is_never_markup(page, scripted) -> None:
    scripted.says("\n\n".join(HOSTILE))
    ask(page, HOSTILE[0])
    page.get_by_role("button", name="Regenerate").wait_for()
    turns = page.locator("#turns")
    assert turns.locator("img, script, iframe, svg, style, object, embed, b").count() == 0
    targets = turns.locator("a").evaluate_all("links => links.map(link => link.href)")
    assert targets == ["https://elsewhere.example/pixel.png"]
    assert turns.locator("a").first.get_attribute("rel") == "noopener noreferrer"
    assert page.evaluate("window.hit") is None
    assert page.locator(".turn.user .text").inner_text() == HOSTILE[0]
    assert HOSTILE[1] in page.locator(".turn.assistant .text").inner_text()


def test_the_policy_holds_even_if_the_page_were_tricked(page, wrong) -> None:
    """Markup from text is refused by the browser itself, and so is another host."""
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<img src=x onerror=window.hit=1>'")
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'went', error => error.name)") == "TypeError"
    assert any("connect-src 'self'" in line for line in wrong)
    wrong.clear()


def test_a_refusal_is_told_and_can_be_tried_again(page, scripted, screenshots) -> None:
    scripted.refuses(400, "temperature is at most 2", param="temperature")
    ask(page, "one")
    assert failed(page) == "temperature is at most 2 (temperature)"
    page.screenshot(path=screenshots / "error.png")
    scripted.says("Fine")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert page.get_by_role("alert").count() == 0
    assert page.locator(".turn.assistant .text").inner_text() == "Fine"


def test_overload_says_when_to_come_back(page, scripted) -> None:
    scripted.refuses(429, "100 requests wait already.", {"Retry-After": "7"})
    ask(page, "one")
    assert failed(page) == "100 requests wait already. Try again in 7 s."


def test_an_error_event_ends_the_answer(page, scripted) -> None:
    scripted.streams(scripted.piece("Half"), '{"error": {"message": "the engine was lost", "type": "server_error"}}')
    ask(page, "one")
    assert failed(page) == "the engine was lost"
    assert page.locator(".turn.assistant .text").inner_text() == "Half"


def test_a_stream_that_stops_short_is_no_answer(page, scripted) -> None:
    scripted.streams(scripted.piece("Half"), b"data: [DON")
    ask(page, "one")
    assert failed(page) == "The connection ended before the answer was complete."


def test_a_stream_that_is_no_stream(page, scripted) -> None:
    scripted.streams(b"data: {nonsense\n\n")
    ask(page, "one")
    assert failed(page) == "The server sent an event that is not JSON."


def test_a_body_without_the_shape_of_an_error(page, scripted) -> None:
    scripted.refuses(502, "")
    scripted.answers[0].steps = (b"<h1>Bad gateway</h1>",)
    ask(page, "one")
    assert failed(page) == "<h1>Bad gateway</h1>"


def test_a_server_that_is_gone(page, scripted) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    ask(page, "one")
    assert failed(page) == "The server does not answer."


def test_after_a_failure_the_messages_become_one(page, scripted) -> None:
    """Templates want the roles to alternate."""
    scripted.refuses(503, "not now")
    ask(page, "one")
    failed(page)
    scripted.says("Both")
    ask(page, "two")
    page.get_by_role("button", name="Regenerate").wait_for()
    assert scripted.bodies[1]["messages"] == [{"role": "user", "content": "one\n\ntwo"}]


def test_a_key_is_asked_for_and_sent(page, scripted) -> None:
    scripted.key = "secret"
    page.reload()
    page.get_by_text("an API key is wanted").wait_for()
    ask(page, "one")
    field = page.get_by_label("API key")
    field.wait_for()
    assert field.evaluate("it => it === document.activeElement")
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    page.locator("#state", has_text="ready").wait_for()
    scripted.says("Welcome")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert scripted.keys == ["Bearer secret"]
    assert page.evaluate("JSON.stringify(localStorage)").find("secret") == -1


def test_who_types_before_the_models_are_listed_asks_one_by_name(page, scripted) -> None:
    scripted.not_ready = "the model is being loaded"  # the page itself lists none before it is
    page.reload()
    page.locator("#state", has_text="the model is being loaded").wait_for()
    assert page.locator("#model option").count() == 0
    scripted.says("Early")
    ask(page, "one")
    page.get_by_role("button", name="Regenerate").wait_for()
    (body,) = scripted.bodies
    assert body["model"] == "smollm2"


def test_models_that_cannot_be_listed_are_the_error_of_the_answer(page, scripted) -> None:
    scripted.not_ready = "the model is being loaded"
    page.route("**/v1/models", lambda route: route.fulfill(status=503, body='{"error": {"message": "not yet"}}'))
    page.reload()
    page.locator("#state", has_text="the model is being loaded").wait_for()
    ask(page, "one")
    assert failed(page) == "not yet"
    assert scripted.bodies == []
    page.unroute_all()
    scripted.says("Now")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert [body["model"] for body in scripted.bodies] == ["smollm2"]


def test_listing_the_models_can_be_stopped(page, scripted) -> None:
    scripted.not_ready = "the model is being loaded"
    page.route("**/v1/models", lambda route: None)  # it never answers
    page.reload()
    page.locator("#state", has_text="the model is being loaded").wait_for()
    ask(page, "one")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert "stopped" in page.locator(".turn.assistant .foot").inner_text()


def test_a_server_that_loads_is_waited_for(page, scripted) -> None:
    scripted.not_ready = "the model is being loaded"
    page.reload()
    page.locator("#state", has_text="the model is being loaded").wait_for()
    scripted.not_ready = None
    page.locator("#state", has_text="ready").wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "smollm2"


def test_enter_while_an_answer_comes_keeps_the_draft(page, scripted) -> None:
    go_on = threading.Event()
    scripted.streams(go_on, scripted.piece("Late"), *scripted.end(1))
    ask(page, "one")
    page.get_by_role("button", name="Stop").wait_for()
    ask(page, "two")
    assert page.get_by_label("Message", exact=True).input_value() == "two"
    assert len(scripted.bodies) <= 1
    go_on.set()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert page.locator(".turn.user").count() == 1
