"""Markdown as elements: what is recognized, and that a text which grows ends as one that came at once."""

from __future__ import annotations

from time import perf_counter

import pytest

pytestmark = pytest.mark.slow  # all of them together

SHOW = """async ({texts, steps}) => {
    const {Markdown} = await import("/page/markdown.js");
    return texts.map((text, place) => {
        const parent = document.createElement("div");
        const view = new Markdown(parent);
        for (const end of steps?.[place] ?? []) view.update(text.slice(0, end));
        view.update(text);
        return parent.outerHTML.slice(5, -6);
    });
}"""
FIGURE = '<figure><figcaption><span>{}</span><button type="button">Copy</button></figcaption>'

CASES = {
    "a\nb\n\nc": "<p>a<br>b</p><p>c</p>",
    "# A\n####### no": "<h3>A</h3><p>####### no</p>",
    "**b** *i* ~~s~~ `c`": "<p><strong>b</strong> <em>i</em> <s>s</s> <code>c</code></p>",
    "__b__ _i_": "<p><strong>b</strong> <em>i</em></p>",
    "**a** b**, **c** and *d*": "<p><strong>a</strong> b**, <strong>c</strong> and <em>d</em></p>",
    "***both***": "<p><strong><em>both</em></strong></p>",
    "2 * 3 * 4, snake_case_name, **open, `open": "<p>2 * 3 * 4, snake_case_name, **open, `open</p>",
    r"\*not\* \`code\`": "<p>*not* `code`</p>",
    "``a ` b``": "<p><code>a ` b</code></p>",
    "`**x**`": "<p><code>**x**</code></p>",
    "- a\n- b\n  - c\n\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "- a\n\n  more\n\nafter": "<ul><li>a<p>more</p></li></ul><p>after</p>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "---": "<hr>",
    "```py\nx\n\n# y\n```\nz": f'{FIGURE.format("py")}<pre tabindex="0"><code>x\n\n# y</code></pre></figure><p>z</p>',
    "````\n```\n````": f'{FIGURE.format("code")}<pre tabindex="0"><code>```</code></pre></figure>',
    "```\nopen": f'{FIGURE.format("code")}<pre tabindex="0"><code>open</code></pre></figure>',
    "| a | b |\n|--|--|\n| 1 |": (
        '<div class="table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
        "<tbody><tr><td>1</td><td></td></tr></tbody></table></div>"
    ),
    "a | b": "<p>a | b</p>",
    "see https://x.example/a_b_c. Yes": (
        '<p>see <a href="https://x.example/a_b_c" target="_blank" rel="noopener noreferrer">https://x.example/a_b_c</a>'
        ". Yes</p>"
    ),
    "[a](ftp://x) [b](/relative) [c]": "<p>[a](ftp://x) [b](/relative) [c]</p>",
    "<b>&amp;": "<p>&lt;b&gt;&amp;amp;</p>",
}  # fmt: skip
"""Text and what it becomes, by the rules of CommonMark where it has them, without its HTML and its lazy lines."""

PARTS = [
    *"abc XY12 \n\n\n\n*_`~[]()!#>-|\\.:", "**", "```", "\n- ", "\n  - ", "\n1. ", "\n> ", "| a | b |\n|--|--|\n", "# ",
    "https://x.example/", "[l](https://y.example)", "日本", "👩‍🚀",
]  # fmt: skip


@pytest.fixture
def show(page):
    return lambda texts, steps=None: page.evaluate(SHOW, {"texts": texts, "steps": steps})


def test_what_is_recognized(show) -> None:
    assert dict(zip(CASES, show(list(CASES)), strict=True)) == CASES


def test_a_text_that_grows_ends_as_one_that_came_at_once(show, rng) -> None:
    texts = ["".join(rng.choice(PARTS, size=40)) for _ in range(300)]
    steps = [sorted(rng.integers(0, len(text), size=12).tolist()) for text in texts]
    assert show(texts, steps) == show(texts)


def test_no_character_is_lost_in_code_and_none_becomes_an_element(show, page, rng) -> None:
    letters = [chr(code) for code in range(32, 127)]
    texts = ["".join(rng.choice(letters, size=60)) for _ in range(100)]
    fenced = show([f"~~~\n{text}\n~~~" for text in texts])
    back = page.evaluate(
        "parts => parts.map(part => new Map([[1, part.match(/<code>(.*)<\\/code>/s)[1]]]).get(1))", fenced
    )
    escaped = [text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in texts]
    assert back == escaped


def test_no_text_takes_long(show) -> None:
    """Each would take minutes where its length counted squared."""
    many = ["[" * 100_000, "*a " * 50_000, "`" * 100_000, "> " * 50_000, "- " * 50_000, "|" * 100_000, "- a\n" * 20_000]
    started = perf_counter()
    show(many)
    assert perf_counter() - started < 20
