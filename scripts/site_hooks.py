"""Hooks of mkdocs for `make site`: pages that stand outside docs/, links that lead there, and no other host.

The pages are read on a code host and on the site. There, a link to `../repot/errors.py` leads to the file; here, where
no file of the repository is, it becomes its text. A link to a file that does not exist stays, and fails the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: Files outside docs/ and their pages; docs/index.md is the page of README.md.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/django/README.md": "example-django.md",
    "examples/fastapi/README.md": "example-fastapi.md",
    "examples/script/README.md": "example-script.md",
}
PAGES = OUTSIDE | {"README.md": "index.md"}
#: What stands in docs/index.md for the beginning of README.md.
FIRST_SCREEN = "<!-- the beginning of README.md -->"
#: Beside pages that explain a term, those of rules that name it come later in a search.
_OF_RULES = 0.01

_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_BLOCK = re.compile(r"(?ms)^[ ]*```.*?^[ ]*```[ ]*$")
#: What tests read in the first line of a block (tests/support/pages.py); the site would show all of that line.
_OPTIONS = re.compile(r"\A(?P<fence>[ ]*```\w*)[^\n]*")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon)))
    [^>]*?\b(?:src|href)=["']?(?P<address>(?:https?:)?//[^"'\s>]+)""",
    re.VERBOSE,
)

# a warning of mkdocs' own: the strict build fails on it
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside docs/."""
    root = Path(config.docs_dir).parent
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page that lead out of docs/; of blocks of code leave out the options."""
    if page.file.src_uri.startswith("rules/RPT"):
        page.meta["search"] = {"boost": _OF_RULES}
    root = Path(config.docs_dir).parent
    known = {file.src_uri for file in files}
    if FIRST_SCREEN in markdown:
        page.meta["hide"] = ["toc"]
        readme = (root / "README.md").read_text().partition("\n## ")[0].partition("\n")[2]
        first = _as_page(readme, "README.md", root, known)
        markdown = markdown.replace(FIRST_SCREEN, first)
    source = next((name for name, uri in OUTSIDE.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")
    return _as_page(markdown, source, root, known)


def _as_page(markdown: str, source: str, root: Path, known: set[str]) -> str:
    parts, end = [], 0
    for block in _BLOCK.finditer(markdown):
        shown = _OPTIONS.sub(r"\g<fence>", block[0])
        parts += [rewritten(markdown[end : block.start()], source, root, known), shown]
        end = block.end()
    return "".join([*parts, rewritten(markdown[end:], source, root, known)])


def rewritten(text: str, source: str, root: Path, known: set[str]) -> str:
    """Return a text with the links of a file `source` of the repository as links of the site."""
    here = posixpath.dirname(source)

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        page = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if page in known:
            start = posixpath.dirname(source.removeprefix("docs/")) if source.startswith("docs/") else "."
            return f"[{words}]({posixpath.relpath(page, start or '.')}{anchor})"
        if page or not (root / path).exists():
            return match[0]
        return words if path.rstrip("/") in words else f"{words} (`{path}`)"

    return _LINK.sub(link, text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - mkdocs' signature
    """Warn of whatever a page would load from another host; name the search, which the theme does not."""
    for address in from_other_hosts(output):
        _log.warning("%s loads %s from another host", page.file.src_uri, address)
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')


def from_other_hosts(html: str) -> list[str]:
    """Return the addresses on other hosts that a page loads; links that a reader may follow are none of them."""
    return [match["address"] for match in _LOADED.finditer(html)]
