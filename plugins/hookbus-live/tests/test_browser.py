"""Tests the page in a browser: a run is seen to move, and does what is clicked."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.browsers import PICTURES, browser, needs_browser, take_picture
from tests.support.live_pages import page_of, training, until

pytestmark = [needs_browser, pytest.mark.long]
ROOT = Path(__file__).parents[3]
FAST = {"epochs": 10, "steps": 1500, "secs": 0.002}
FLAGS = ("-o", "live.every_n_steps=5", "--checkpoint-saver-save-steps", "500")
LOSS = "figure:first-of-type .plot"


@pytest.fixture
def driver():
    """A browser whose pages log no error."""
    with browser() as driver:
        yield driver
        # That the server is gone, at the end, is no error of the page.
        errors = [e for e in driver.get_log("browser") if e["source"] != "network"]
        assert errors == []


def text(driver, css: str) -> str:
    return driver.execute_script(
        "return document.querySelector(arguments[0])?.textContent ?? ''", css
    )


def step(driver) -> int:
    found = re.search(r"step ([\d,]+)", text(driver, "#status"))
    return int(found[1].replace(",", "")) if found else 0


def label(driver) -> str:
    """Return the label of the first chart for a screen reader."""
    return driver.execute_script(
        "return document.querySelector(arguments[0])?.ariaLabel ?? ''", LOSS
    )


def span(driver) -> tuple[float, float]:
    """Return the range of the first chart."""
    found = re.search(r"from ([\d.,]+) to ([\d.,]+):", label(driver))
    assert found, label(driver)
    low, high = (float(number.replace(",", "")) for number in found.groups())
    return low, high


def click(driver, css: str) -> None:
    driver.find_element("css selector", css).click()


def give(driver, css: str, value: str) -> None:
    field = driver.find_element("css selector", css)
    field.clear()
    field.send_keys(value)


def dark(driver, is_dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def test_a_training_moves_is_saved_slowed_and_stopped(driver):
    """All from the page, with the log and the outcome to tell it."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver))
        assert page.token not in driver.current_url
        first, (_, end) = step(driver), span(driver)
        until(lambda: step(driver) > first and span(driver)[1] > end)

        click(driver, "#save")
        until(lambda: "is saved" in text(driver, "#answer"))
        click(driver, "[data-part=checkpoints] summary")
        until(lambda: "live (asked for on the page)" in text(driver, "#checkpoints"))
        click(driver, "#checkpoints button")
        until(lambda: "good" in text(driver, "#checkpoints"))

        give(driver, "#value", "0.004")
        click(driver, "#assign button:not([type])")
        until(lambda: "set model.lr to 0.004: done" in text(driver, "#answer"))
        until(lambda: "now 0.004" in text(driver, "#current"))
        until(lambda: "set model.lr to 0.004" in text(driver, "#asked"))

        click(driver, "[data-part=log] summary")
        click(driver, "[data-part=hooks] summary")
        until(lambda: "asked on the page" in text(driver, "#log-lines"))
        until(lambda: "watched steps" in text(driver, "#hooks"))
        until(lambda: not PICTURES or step(driver) > 2600)
        driver.execute_script("scrollTo(0, 0)")
        take_picture(driver, "live.png")

        click(driver, "#stop")
        give(driver, "#why", "seen enough")
        click(driver, "#confirm .danger")
        assert page.process.wait(60) == 0
        until(lambda: "stopped" in text(driver, "#numbers"))
    outcome = json.loads(Path("runs/toy/outcome.json").read_text())
    assert (outcome["kind"], outcome["who"]) == ("stopped", "live")
    assert outcome["why"] == "asked for on the page: seen enough"


def test_nobody_stops_a_training_by_a_slip(driver):
    """A question comes first, and Escape is no."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: step(driver))
        click(driver, "#stop")
        driver.find_element("css selector", "#why").send_keys("\ue00c")
        before = step(driver)
        until(lambda: step(driver) > before)
        assert page.details()["requests"] == []


def test_a_chart_is_zoomed_by_keys_and_read_as_a_table(driver):
    """Without a mouse, and without seeing it."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver) and span(driver)[1] > 200)
        chart = driver.find_element("css selector", LOSS)
        chart.send_keys("+")
        until(lambda: span(driver)[0] > 20)
        chart.send_keys("0")
        until(lambda: span(driver)[0] == 1)
        click(driver, "figure summary")
        until(lambda: len(driver.find_elements("css selector", "figure tbody tr")) > 10)
        click(driver, "#log")
        give(driver, "#find", "accuracy")
        until(lambda: "accuracy" in label(driver))


@pytest.mark.parametrize("width", [400, 2000])
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_the_screen_in_both_lights(driver, width, is_dark):
    """Nothing sticks out, and writing differs from its ground."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    dark(driver, is_dark)
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver))
        for part in driver.find_elements("css selector", "details[data-part] summary"):
            driver.execute_script("arguments[0].click()", part)
        until(lambda: "checkpoint-saver" in text(driver, "#checkpoints"))
        wide = "return [document.documentElement.scrollWidth, innerWidth]"
        found, inner = driver.execute_script(wide)
        assert found <= inner == width
        colours = driver.execute_script(
            "const s = getComputedStyle(document.body);return [s.color, s.backgroundColor]"
        )
        front, back = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in colours)
        assert (front > back) == is_dark
        assert abs(front - back) > 450


def test_all_that_can_be_used_has_a_name(driver):
    """Screen readers say it, and the Tab key reaches it."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver))
        fields = driver.find_elements(
            "css selector", "input, select, button, summary, .plot"
        )
        shown = [each for each in fields if each.is_displayed()]
        assert len(shown) > 15
        assert [e.get_attribute("outerHTML") for e in shown if not e.accessible_name] == []
        driver.execute_script("document.activeElement.blur()")
        reached = set()
        for _ in range(40):
            driver.switch_to.active_element.send_keys("\ue004")
            reached.add(
                driver.execute_script(
                    "const e = document.activeElement;"
                    "return e.id || e.className || e.tagName"
                )
            )
        assert {"skip", "save", "stop", "variable", "value", "smooth"} <= reached
        assert any("plot" in each for each in reached)


def test_nothing_is_loaded_from_elsewhere(driver):
    """Every file and answer is from the server of the page."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver))
        names = driver.execute_script(
            "return performance.getEntriesByType('resource').map((e) => e.name)"
        )
        assert len(names) > 8
        assert [name for name in names if not name.startswith(f"{page.base}/")] == []


def test_a_page_without_the_token_says_what_to_open(driver):
    """Somebody has typed the address."""
    with training(*FLAGS, **FAST) as page:
        driver.get(page.base)
        until(lambda: "open the address from the log" in text(driver, "#status"))


def test_trainings_are_compared(driver):
    """Each has its line, and lines can be hidden."""
    draws = {"a": 30, "b": 60, "c": 90}
    for name, steps in draws.items():
        lines = (
            json.dumps({"step": at, "time": 1.7e9 + at, "loss": 2 ** (-at / steps)})
            for at in range(300)
        )
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "metrics.jsonl").write_text("\n".join(lines) + "\n")
        os.utime(Path("runs", name, "metrics.jsonl"), (1.7e9, 1.7e9))
    with page_of(["view", "runs"]) as page:
        driver.get(page.url)
        until(lambda: "and 2 more" in label(driver))
        dark(driver, True)
        until(lambda: "silent" in text(driver, "#run-list"))
        take_picture(driver, "view.png")
        click(driver, "#run-list tr[data-run=b] input")
        until(lambda: "and 1 more" in label(driver))
        click(driver, "#no-runs")
        until(lambda: not driver.find_elements("css selector", "figure"))
        click(driver, "#all-runs")
        until(lambda: "and 2 more" in label(driver))


def lines_drawn(driver) -> int:
    """Return the number of runs that have a line of their colour in the first chart."""
    return driver.execute_script(
        """
        const lines = document.querySelector("figure canvas.lines");
        if (!lines?.width || !lines.isConnected) return 0;
        const { width, height } = lines;
        const copy = Object.assign(document.createElement("canvas"), { width, height });
        const pen = copy.getContext("2d");
        pen.drawImage(lines, 0, 0);
        const { data } = pen.getImageData(0, 0, width, height);
        const near = (wanted, at) => data[at + 3] > 90
          && wanted.every((part, n) => Math.abs(part - data[at + n]) < 8);
        return [...document.querySelectorAll("#run-list .swatch")].filter((swatch) => {
          const { backgroundColor } = getComputedStyle(swatch);
          const wanted = backgroundColor.match(/\\d+/g).map(Number);
          for (let at = 0; at < data.length; at += 4) if (near(wanted, at)) return true;
          return false;
        }).length;
        """
    )


def test_many_lines_are_drawn_where_they_are_seen(driver):
    """Each line of the charts on the screen, and no chart that is far below."""
    names = [f"value{at}" for at in range(60)]
    for run in range(8):
        lines = (
            json.dumps({"step": at, "time": 1.7e9 + at, **dict.fromkeys(names, run + 1)})
            for at in range(100)
        )
        Path("runs", str(run)).mkdir(parents=True)
        Path("runs", str(run), "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with page_of(["view", "runs"]) as page:
        driver.get(page.url)
        until(lambda: "and 7 more" in label(driver))
        until(lambda: lines_drawn(driver) == 8)
        assert len(driver.find_elements("css selector", "figure")) == 60
        assert len(driver.find_elements("css selector", "figure .uplot")) < 30
        click(driver, "#run-list tr[data-run='3'] input")
        until(lambda: lines_drawn(driver) == 7)
        click(driver, "#log")
        until(lambda: "and 6 more" in label(driver) and lines_drawn(driver) == 7)
        driver.execute_script(
            "document.querySelector('figure:last-of-type').scrollIntoView()"
        )
        last = "return document.querySelector('figure:last-of-type .uplot') !== null"
        until(lambda: driver.execute_script(last))


def test_the_guide_leads_to_a_moving_chart(driver):
    """Its script and its command, as a newcomer types them."""
    guide = (ROOT / "docs" / "how-to" / "live.md").read_text("utf-8")
    script = re.search(r'^```python title="train.py"\n(.*?)^```', guide, re.M | re.S)
    command = re.search(r"^\$ hookbus (run -p live train\.py)$", guide, re.M)
    assert script
    assert command
    Path("train.py").write_text(script[1])
    with page_of(command[1].split()) as page:
        driver.get(page.url)
        until(lambda: "line chart" in label(driver))
        end = span(driver)[1]
        until(lambda: span(driver)[1] > end)
