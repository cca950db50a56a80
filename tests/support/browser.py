"""A headless Chromium, and a person in front of a page in it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ChromeOptions, Remote
from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
from selenium.webdriver.common.by import By
from urllib3.exceptions import HTTPError

from repot.config.environment import inherited_environment
from repot.testbed import free_port
from repot.testbed.executables import Executable
from repot.testbed.process import ReapedProcess
from repot.waiting import wait_until
from support.installed import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

_HOW = "`scripts/setup browser` in repot's repository"
CHROMIUM = Executable(("chromium", "chromium-browser", "google-chrome"), debian=_HOW, macos=_HOW, docker=_HOW)
DRIVER = Executable(("chromedriver",), debian=_HOW, macos=_HOW, docker=_HOW)

WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Reader:
    """A browser with a page."""

    browser: Remote
    address: str

    def opens(self, *, width: int = 1280, height: int = 900, scheme: str = "light", script: bool = True) -> None:
        """Open the page on a screen of this size."""
        self.tells("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tells("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.tells("Emulation.setScriptExecutionDisabled", value=not script)
        self.browser.get("about:blank")
        self.browser.get(self.address)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that match a selector."""
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the first element that matches a selector."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def shown(self, selector: str) -> list[WebElement]:
        """Return the visible elements that match a selector.

        In one step: a page that refreshes itself may replace what was found before the next.
        """
        visible = "[...document.querySelectorAll(arguments[0])].filter((one) => one.checkVisibility())"
        found: list[WebElement] = self.asks(visible, selector)
        return found

    def text(self, selector: str) -> str:
        """Return the visible text of the first element that matches a selector, in one step as well."""
        found: str = self.asks("document.querySelector(arguments[0]).innerText", selector)
        return found

    def asks(self, script: str, *given: Any) -> Any:
        """Return the value of a script in the page."""
        return self.browser.execute_script(f"return {script}", *given)

    def clicks(self, selector: str) -> None:
        """Scroll to an element and click it."""
        self.asks("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", target := self.one(selector))
        target.click()

    def waits(self, question: str, what: str) -> None:
        """Wait until a script in the page returns true."""
        wait_until(lambda: self.asks(question), within_s=WITHIN_S, what=what)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings in the browser's console since the last call."""
        return [entry["message"] for entry in self.browser.execute("getLog", {"type": "browser"})["value"]]

    def tells(self, command: str, **given: Any) -> Any:
        """Give the browser a command of the DevTools protocol."""
        return self.browser.execute("executeCdpCommand", {"cmd": command, "params": given})["value"]


@contextmanager
def open_browser(directory: Path) -> Iterator[Remote]:
    """A headless Chromium that ends with its driver, and its driver with these tests."""
    require(CHROMIUM)
    require(DRIVER)
    port = free_port()
    options = ChromeOptions()
    options.binary_location = CHROMIUM.find()
    # by a pipe, whose end tells the browser to exit; a container's root has no sandbox, and its /dev/shm is small
    for argument in ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    environment = {**inherited_environment(without=()), "HOME": str(directory), "TMPDIR": str(directory)}
    with ReapedProcess([DRIVER.find(), f"--port={port}"], log=directory / "log", environment=environment) as driver:
        address = f"http://127.0.0.1:{port}"
        found = wait_until(lambda: _connected(address, options), within_s=60, what=f"a browser; {driver.log_tail()}")
        assert found is not None
        found.set_script_timeout(300)
        yield found
        found.quit()


def _connected(address: str, options: ChromeOptions) -> Remote | None:
    try:
        return Remote(ChromeRemoteConnection(address), options=options)
    except (HTTPError, WebDriverException):
        return None
