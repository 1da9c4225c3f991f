"""The chat page: plain HTML, CSS and JavaScript without a build step, and how it is served."""

from poot_serve.page.served import PageFile, page_files

__all__ = ["PageFile", "page_files"]
