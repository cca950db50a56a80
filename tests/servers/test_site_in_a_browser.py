"""The docs site in a browser: light and dark, on a wide screen and a narrow one, with nothing from another host."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import axe_core_python  # type: ignore[import-untyped]
import pytest

from support.browser import Reader, open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Remote

ROOT = Path(__file__).parents[2]
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
#: Each has something that others have not: tables, diagrams, wide tables, long names, a list of many links.
PAGES = ("", "architecture/", "demo/", "example-django/", "exit-codes/", "rollout/", "settings/", "tutorial-rollout/")

pytestmark = pytest.mark.xdist_group("docs site")


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's signature
        """Log nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site as `make site` builds it."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(directory))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.strip("/") or "index")
def test_a_page_fits_and_axe_finds_nothing_serious(
    browser: Remote, address: str, page: str, width: int, scheme: str
) -> None:
    reader = Reader(browser, f"{address}{page}")
    reader.opens(width=width, scheme=scheme)
    reader.waits("document.readyState === 'complete'", "the page is loaded")
    assert {"light": "default", "dark": "slate"}[scheme] == reader.asks("document.body.dataset.mdColorScheme")
    loaded = reader.asks("performance.getEntriesByType('resource').map((one) => one.name)")
    assert any(name.endswith(".css") for name in loaded)
    assert [name for name in loaded if not name.startswith(address)] == []
    assert reader.complaints == []
    # nothing is wider than the screen, but what scrolls by itself
    assert reader.asks("document.documentElement.scrollWidth") <= width
    browser.execute_script(AXE)
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    serious = [one for one in found["violations"] if one["impact"] in {"serious", "critical"}]
    assert [(one["id"], len(one["nodes"]), one["nodes"][0]["html"]) for one in serious] == []


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_session_plays_to_its_end_and_stands_still_on_request(browser: Remote, address: str, motion: str) -> None:
    reader = Reader(browser, f"{address}pictures/demo.svg")
    reader.tells("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": motion}])
    browser.get("about:blank")
    browser.get(reader.address)
    last = "getComputedStyle([...document.querySelectorAll('text')].at(-1)).opacity"
    box = "[...document.querySelectorAll('text')].at(-1).getBoundingClientRect()"
    if motion == "no-preference":
        assert reader.asks(last) == "0"
        # it is not waited for: its own time is moved
        reader.asks("document.getAnimations().forEach((one) => one.finish())")
    assert reader.asks(last) == "1"
    assert reader.asks(f"{box}.bottom <= document.documentElement.getBoundingClientRect().bottom")


@pytest.mark.parametrize("page", ["glossary/", "rules/"])
def test_the_last_column_of_a_table_is_on_a_narrow_screen(browser: Remote, address: str, page: str) -> None:
    reader = Reader(browser, f"{address}{page}")
    reader.opens(width=400, scheme="light")
    reader.waits("document.readyState === 'complete'", "the page is loaded")
    cells = "[...document.querySelectorAll('article td:last-child, article th:last-child')]"
    assert reader.asks(f"{cells}.length") > 20
    assert reader.asks(f"Math.max(...{cells}.map((one) => one.getBoundingClientRect().right))") <= 400


def test_a_title_is_as_dark_as_the_text(browser: Remote, address: str) -> None:
    reader = Reader(browser, f"{address}demo/")
    reader.opens(width=1280, scheme="light")
    reader.waits("document.readyState === 'complete'", "the page is loaded")
    colour = "getComputedStyle(document.querySelector('article {}')).color"
    assert reader.asks(colour.format("h1")) == reader.asks(colour.format("p"))


def test_a_search_finds_the_page_that_explains_before_the_rules(browser: Remote, address: str) -> None:
    reader = Reader(browser, f"{address}?q=visibility+timeout")
    reader.opens(width=1280, scheme="light")
    results = "[...document.querySelectorAll('.md-search-result__link')].map((one) => one.pathname)"
    reader.waits(f"{results}.length > 3", "there are results")
    found = reader.asks(results)
    assert found[0] == "/tutorial-ran-twice/", found
