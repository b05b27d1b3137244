"""The pictures and tables in the pages are what their scripts write today."""

from __future__ import annotations

import html
import re
import runpy
import sys

import pytest

from tests.support.pages import ROOT

CLOCK = r"\d?\d:\d\d:\d\d"
MEASURED = r"(?<=secs=)[\d.]+|(?<=steps_per_sec=)[\d.]+|[\d.]+(?= steps/s)"
# The bar reads its values only when it draws, so the clock decides which step shows, and
# whether it is one whose gradients were asked for. A bar that fails stays as it was.
FAILED_BAR = r"(?<=failed )[━╸╺].*?(?=\d\d:\d\d:\d\d \[)"
IN_THE_BAR = r"(?<=loss )[\d.]+(?:\s+model:grad_norm [\d.]+)?"


def text_of(svg: str) -> str:
    """Return the text in a picture without what differs from run to run."""
    spans = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    text = html.unescape("".join(spans)).replace("\xa0", " ")
    text = re.sub(FAILED_BAR, "", text, flags=re.DOTALL)
    text = re.sub(f"{CLOCK}|{MEASURED}|{IN_THE_BAR}", "N", text)
    # Other versions of NumPy may differ in the last digits of a loss.
    text = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2g}", text)
    return re.sub(r"\s", "", text)  # lines break elsewhere when a time is longer


TERMINALS = runpy.run_path(str(ROOT / "docs" / "terminal_picture.py"))


@pytest.mark.page
@pytest.mark.torch  # `hookbus why` offers --locate-nan where hookbus-torch is installed
@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX terminals")
@pytest.mark.parametrize(
    "picture",
    [pytest.param(picture, id=picture.name) for picture in TERMINALS["PICTURES"]],
)
def test_a_terminal_is_what_its_commands_show(picture):
    """The commands of a page print what its picture shows, but for times and speeds."""
    today = TERMINALS["drawn"](picture)
    assert text_of(today) == text_of(picture.path.read_text("utf-8"))


def test_the_house_is_what_is_imported():
    """The arrows in CONTRIBUTING.md are those between the packages of today."""
    script = runpy.run_path(str(ROOT / "docs" / "house_picture.py"))
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert script["page"](text) == text


def test_the_tables_are_of_what_the_tests_run():
    """The pages show a cell for each run that the tests try."""
    script = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    for page in script["PAGES"]:
        assert script["written"](page) == page.read_text("utf-8")
