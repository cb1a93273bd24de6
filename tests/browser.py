"""A real browser without a window: what a page shows, asks for and complains of."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A browser without a window; skips where there is none, unless `REQUIRE_BROWSER=1`."""
    with running_browser() as browser:
        yield browser


@contextmanager
def running_browser() -> Iterator[Chrome]:
    """A browser for a while; skips likewise."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        assert os.environ.get("REQUIRE_BROWSER") != "1", "chromium and chromium-driver are missing"
        pytest.skip("there is no chromium with its driver: packages chromium, chromium-driver")
    options = ChromeOptions()
    # Chromium runs as root, as in containers, only without its sandbox; it shows our own file.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def opened(browser: Chrome, page: str, file: Path, width: int) -> Chrome:
    """Shows a page, with so much room for it."""
    file.write_text(page, encoding="utf-8")
    resize(browser, width)
    logged(browser, "browser")
    browser.get(file.as_uri())
    return browser


def logged(browser: Chrome, kind: str) -> list[dict[str, str]]:
    """What the browser has logged since it was asked."""
    told: list[dict[str, str]] = browser.get_log(kind)  # type: ignore[no-untyped-call] # has none
    return told


def asked_of_others(browser: Chrome) -> list[str]:
    """What the browser has asked the network for since this was asked."""
    asked = [entry["message"] for entry in logged(browser, "performance")]
    assert any("Network.requestWillBeSent" in message for message in asked), "the page itself"
    return [message for message in asked if '"url":"http' in message]


def resize(browser: Chrome, width: int) -> None:
    """Gives the page so much room."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def colours(browser: Chrome, scheme: str) -> None:
    """Has the page think that its reader prefers light or dark; "" is what the browser says."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features if scheme else []})


def count(browser: Chrome, selector: str) -> int:
    """How many elements there are."""
    return int(browser.execute_script(f"return document.querySelectorAll({selector!r}).length"))


def text(browser: Chrome, selector: str = "main") -> str:
    """What a person reads."""
    return str(browser.execute_script(f"return document.querySelector({selector!r}).innerText"))


def pointed(browser: Chrome, selector: str, x: float, y: float) -> str:
    """What is told with the pointer over an element, at these shares of its width and height."""
    script = """const [selector, x, y] = arguments;
      const node = document.querySelector(selector), box = node.getBoundingClientRect();
      node.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
        clientX: box.x + x * box.width, clientY: box.y + y * box.height}));
      return document.getElementById("tip").innerText"""
    return str(browser.execute_script(script, selector, x, y))
