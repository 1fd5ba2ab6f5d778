"""A real Chromium without a window, and what a test asks of a page in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from edl.tests.waiting import wait_until

#: They also keep a fresh browser from talking to anything but the page.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip

_NODES = "[...document.querySelectorAll('#stage [data-key]')]"
_NODE = f"{_NODES}.find(one => one.dataset.key === arguments[0])"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium without a window; skip the test where it or its driver is missing."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = webdriver.Chrome(options=options, service=Service(driver))
        try:
            size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            yield Browser(chrome)
        finally:
            chrome.quit()


class Browser:
    def __init__(self, chrome: webdriver.Chrome) -> None:
        self.chrome = chrome

    def open(self, url: str) -> None:
        """Open a page, and wait for its first teachers."""
        self.chrome.get(url)
        self.until(lambda: self.all("#hosts .tile"))

    def one(self, selector: str) -> WebElement:
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.chrome.execute_script(script, *arguments)

    def state_of(self, key: str) -> str | None:
        """The state in which a node is drawn; None: it is not there."""
        state: str | None = self.run(f"const node = {_NODE}; return node?.dataset.state", key)
        return state

    def click(self, key: str) -> None:
        self.run(f"{_NODE}.click()", key)

    def until(self, what: Callable[[], object]) -> None:
        """Wait until something holds that may not be drawn yet."""
        wait_until(lambda: _holds(what))

    def errors(self) -> list[str]:
        """What the console has said since the last call, warnings and errors."""
        entries: list[dict[str, str]] = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]
        return [e["message"] for e in entries if e["level"] in ("WARNING", "SEVERE")]


def _holds(what: Callable[[], object]) -> bool:
    try:
        return bool(what())
    except (NoSuchElementException, StaleElementReferenceException):  # not drawn yet, or anew
        return False
