"""The page's files and the headers that they are served with."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest

from poot_serve.page import PageFile, page_files

FILES = {page.path: page for page in page_files()}


def text(page: PageFile) -> str:
    return page.body.decode("utf-8")


def test_the_page_is_at_the_root() -> None:
    assert FILES["/"].media_type == "text/html; charset=utf-8"
    assert text(FILES["/"]).startswith("<!doctype html>")


def test_what_the_page_loads_is_served() -> None:
    wanted = set()
    for page in FILES.values():
        found = re.findall(r"(?:src|href)=\"([^\"#][^\"]*)\"", text(page)) if page.path == "/" else []
        found += re.findall(r"^import [^;]* from \"([^\"]+)\"", text(page), re.MULTILINE)
        wanted |= {urljoin(page.path, name) for name in found}
    assert len(wanted) > 5
    assert wanted | {"/"} == set(FILES)


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_says_what_a_browser_may_do_with_it(path: str) -> None:
    headers = FILES[path].headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_an_etag_is_of_the_content() -> None:
    assert all(re.fullmatch(r'"[0-9a-f]{32}"', page.etag) for page in FILES.values())
    assert len({page.etag for page in FILES.values()}) == len(FILES)


def test_nothing_makes_markup_out_of_text() -> None:
    makers = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|srcdoc"
    )
    assert {path: makers.findall(text(page)) for path, page in FILES.items() if makers.search(text(page))} == {}


def test_nothing_comes_from_elsewhere() -> None:
    """The addresses of other hosts: the namespace of SVG, and where the format of the stream is written down."""
    addresses = {found for page in FILES.values() for found in re.findall(r"https?://[\w.]+\w", text(page))}
    assert addresses == {"http://www.w3.org", "https://html.spec.whatwg.org"}


def test_nothing_is_inline() -> None:
    page = text(FILES["/"])
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
