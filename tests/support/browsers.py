"""Drives Debian's Chromium, without a screen, where it and selenium are installed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
PICTURES = os.environ.get("TESTS_PICTURES")
"""Where pictures for the documentation are written; without it none is."""

needs_browser = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="needs the packages chromium and chromium-driver"
)
_FLAGS = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage")


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 1000) -> Iterator[Any]:
    """Start a browser, and end it at last."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*_FLAGS, f"window-size={width},{height}"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def take_picture(driver: Any, name: str) -> None:
    """Write what the browser shows, if pictures are wanted."""
    if PICTURES:
        driver.save_screenshot(str(Path(PICTURES, name)))
