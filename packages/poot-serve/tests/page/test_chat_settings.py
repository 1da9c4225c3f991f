"""Settings, colours, the keyboard, and what a screen reader gets."""

from __future__ import annotations

import json
import threading

import pytest

pytestmark = pytest.mark.slow  # all of them together


def ask(page, text):
    """Type a message and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def done(page):
    """Wait until the last answer is over."""
    page.get_by_role("button", name="Regenerate").wait_for()


def focused(page):
    """What has the focus: its label or text."""
    return page.evaluate(
        "document.activeElement.labels?.[0]?.textContent.trim() || document.activeElement.textContent.trim()"
    )


def test_settings_are_sent_and_kept(page, scripted, screenshots) -> None:
    page.get_by_role("button", name="Settings").click()
    for label, value in (
        ("System prompt", "Be brief."), ("Temperature", "0.5"), ("Top p", "0.9"), ("Max tokens", "32"), ("Seed", "7"),
    ):  # fmt: skip
        page.get_by_label(label).fill(value)
    page.screenshot(path=screenshots / "settings-light.png")
    page.get_by_role("button", name="Done").click()
    page.reload()
    scripted.says("Yes")
    ask(page, "one")
    done(page)
    (body,) = scripted.bodies
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    wanted = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": 7}
    assert {name: body.get(name) for name in wanted} == wanted
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Done").click()
    scripted.says("Again")
    ask(page, "two")
    done(page)
    assert not wanted.keys() & scripted.bodies[1].keys()
    assert scripted.bodies[1]["messages"][0]["role"] == "user"


def test_a_setting_that_cannot_be_is_refused_and_not_kept(page, scripted) -> None:
    refused = [("Temperature", "3"), ("Temperature", "-1"), ("Top p", "1.5"), ("Max tokens", "0"), ("Seed", "1.5")]
    for label, value in refused:
        page.get_by_role("button", name="Settings").click()
        field = page.get_by_label(label)
        field.fill(value)
        page.get_by_role("button", name="Done").click()
        assert page.locator("dialog").get_by_role("alert").inner_text().startswith(f"{label}: ")
        assert field.get_attribute("aria-invalid") == "true"
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="hidden")
    scripted.says("Yes")
    ask(page, "one")
    done(page)
    assert set(scripted.bodies[0]) == {"messages", "model", "stream", "stream_options"}


def test_settings_of_another_make_are_ignored(page, scripted) -> None:
    for stored in ("nonsense", "null", "[]", '{"temperature": "hot", "theme": "pink", "system": 3}'):
        page.evaluate("text => localStorage.setItem('poot.settings', text)", stored)
        page.reload()
        scripted.says("Yes")
        ask(page, "one")
        done(page)
        assert set(scripted.bodies.pop()) == {"messages", "model", "stream", "stream_options"}


def test_colours_follow_the_system_or_the_setting(page, scripted, screenshots) -> None:
    def back():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    scripted.says("# A title\n\nSome `code` and a list:\n\n- one\n- two\n\n```python\nprint('dark')\n```")
    ask(page, "Show me")
    done(page)
    light = back()
    page.emulate_media(color_scheme="dark")
    dark = back()
    assert light != dark
    page.screenshot(path=screenshots / "answer-dark.png")
    page.get_by_role("button", name="Settings").click()
    page.screenshot(path=screenshots / "settings-dark.png")
    page.get_by_label("light").check()
    assert back() == light
    page.reload()
    assert back() == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("dark").check()
    assert back() == dark


def test_text_stands_out(page) -> None:
    """Contrast of text against its ground is 4.5 at least: success criterion 1.4.3 of WCAG 2.2, with its formula."""
    measure = """() => {
        const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const luminance = (colour) => {
            paint.fillStyle = colour;
            paint.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map((byte) => {
                const part = byte / 255;
                return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const probe = document.body.appendChild(document.createElement("p"));
        const of = (name) => {
            probe.style.color = `var(--${name})`;
            return luminance(getComputedStyle(probe).color);
        };
        const pairs = [["text", "back"], ["text", "mine"], ["text", "code"], ["quiet", "back"], ["quiet", "raised"],
                       ["accent", "back"], ["accent", "raised"], ["on-accent", "accent"], ["bad", "back"]];
        return pairs.map(([front, ground]) => {
            const [low, high] = [of(front), of(ground)].sort((a, b) => a - b);
            return [`${front} on ${ground}`, (high + 0.05) / (low + 0.05)];
        });
    }"""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ratios = page.evaluate(measure)
        assert [pair for pair in ratios if not 4.5 <= pair[1] <= 21] == [], scheme


def test_the_keyboard_reaches_everything_in_order(page, scripted) -> None:
    scripted.models = ["a", "b"]
    page.reload()
    page.locator("#state", has_text="ready").wait_for()
    scripted.says("```\ncode\n```")
    ask(page, "one")
    done(page)
    assert focused(page) == "Message"
    page.get_by_text("Skip to the message").focus()
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(focused(page))
    assert seen == ["Model", "New chat", "Settings", "Copy", "code", "Copy", "Regenerate", "Message", "Send"]
    assert page.locator("a, button, input, select, textarea").first.inner_text() == "Skip to the message"


def test_shift_enter_starts_a_line(page, scripted) -> None:
    page.get_by_label("Message", exact=True).fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    scripted.says("Yes")
    page.keyboard.press("Enter")
    done(page)
    assert scripted.bodies[0]["messages"][0]["content"] == "one\ntwo"


def test_nothing_is_not_sent(page, scripted) -> None:
    for text in ("", "   ", "\n\n"):
        ask(page, text)
    assert page.locator("#turns > li").count() == 0
    assert scripted.bodies == []


def test_the_dialog_keeps_the_focus_and_gives_it_back(page) -> None:
    opener = page.get_by_role("button", name="Settings")
    opener.focus()
    page.keyboard.press("Enter")
    assert focused(page) == "System prompt"
    page.keyboard.press("Escape")
    assert focused(page) == "Settings"


def test_a_screen_reader_hears_whole_sentences_then_the_end(page, scripted) -> None:
    go_on = threading.Event()
    scripted.streams(
        scripted.piece("One sen"), scripted.piece("tence. And a ha"), go_on, scripted.piece("lf."), *scripted.end(4)
    )
    spoken = page.get_by_role("log", name="Answer")
    assert spoken.get_attribute("aria-live") == "polite"
    ask(page, "one")
    spoken.get_by_text("One sentence.").wait_for()
    assert spoken.locator("p").all_inner_texts() == ["One sentence."]
    go_on.set()
    done(page)
    said = spoken.locator("p").all_inner_texts()
    assert said[:2] == ["One sentence.", "And a half."]
    assert said[2].startswith("4 tokens")


def test_everything_that_acts_has_a_name(page, scripted) -> None:
    scripted.says("```\ncode\n```")
    ask(page, "one")
    done(page)
    page.get_by_role("button", name="Settings").click()
    for scope in (page.locator("body"), page.locator("dialog")):
        tree = scope.aria_snapshot()
        nameless = [
            line.strip()
            for line in tree.splitlines()
            if line.strip().lstrip("- ").rstrip(":") in ("button", "textbox", "combobox", "radio", "link", "spinbutton")
        ]
        assert nameless == [], json.dumps(tree)
    assert page.evaluate("document.documentElement.lang") == "en"


def test_it_fits_narrow_and_wide_windows(page, scripted, screenshots) -> None:
    scripted.says(f"A {'very ' * 20}long word: {'x' * 300}\n\n```\n{'y' * 300}\n```")
    ask(page, "z" * 300)
    done(page)
    for width in (1600, 320):
        page.set_viewport_size({"width": width, "height": 640})
        page.screenshot(path=screenshots / f"width-{width}.png")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("main").evaluate("it => it.scrollWidth - it.clientWidth") == 0
