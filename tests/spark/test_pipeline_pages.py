"""Pages of pipelines in a real browser: drawn without a network, readable in light and dark, wide and narrow."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Request, sync_playwright

from holdfast.pipelines import audit_page, charts, insight_page
from holdfast.pipelines.audit_verdict import Verdict
from holdfast.pipelines.insight_findings import Insight

CHROMIUM = shutil.which("chromium")
ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
FROM_MS = 1_763_442_000_000
TOPICS = ["orders", "payments", "sensor-readings-of-the-northern-plant-and-its-neighbours", "a", "b", "c", "d"]
KEY = "customer-with-a-rather-long-name-that-nobody-can-read-in-one-line-of-a-phone"
# What WCAG asks for; of lines and bars it asks for less, and ours have the colours of texts.
CONTRAST_TEXT = 4.5
# Those that only part things, and that of the largest text.
CONTRAST_OTHERS = {"line": 1.2, "shade": 1.0, "ink": 7.0}
# How many pairs of texts in a picture lie upon each other.
OVERLAPS = """() => [...document.querySelectorAll('svg')].map(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  return boxes.flatMap((one, index) => boxes.slice(index + 1).filter(other => one.left < other.right &&
    other.left < one.right && one.top < other.bottom - 1 && other.top < one.bottom - 1)).length;
})"""
SIDEWAYS = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


def insight(windows: int, window_ms: int) -> Insight:
    """Seven topics, of which one has no messages, with errors, hot keys and readers."""
    until_ms = FROM_MS + windows * window_ms
    sums: dict[str, Any] = {"bytes": 4_200_000, "headers": 100, "p50_bytes": 180, "p99_bytes": 40_000}
    sums |= {
        "max_bytes": 1_000_000,
        "messages_per_s": 1234.5,
        "bytes_per_s": 70_000.0,
        "dead": 3,
        "failed": 3,
        "dead_share": 0.003,
    }
    topics = [
        {"topic": name, "messages": 1000 * (6 - place), "keys": 9, "even_keys": 2.5, "messages_per_s_max": 9.0, **sums}
        for place, name in enumerate(TOPICS)
    ]
    rows = [
        {**row, "window_ms": FROM_MS + number * window_ms, "messages_per_s": 1e6 * (1 + (number * 7 + place) % 11)}
        for place, row in enumerate(topics[:-1])
        for number in range(windows)
    ]
    keys = [{"topic": "orders", "key": KEY, "messages": 600, "bytes": 9000, "share": 0.6, "rank": 1}]
    keys += [{"topic": "orders", "key": f"k{n}", "messages": 9, "bytes": 90, "share": 0.01, "rank": n} for n in (2, 3)]
    error = (
        "ValueError: the price of what was ordered is neither a number nor text that could be read as one (pricing.py)"
    )
    return Insight(
        window_ms=window_ms,
        from_ms=FROM_MS,
        until_ms=until_ms,
        asked_ms=until_ms,
        totals={"messages": 21_000, **sums},
        topics=topics,
        partitions=[{"partition": 0, **row} for row in topics] * 2,
        windows=rows,
        partition_windows=[],
        sizes=[{"window_ms": FROM_MS + n * window_ms, "p50_bytes": 180, "p99_bytes": 40_000} for n in range(windows)],
        hot_keys={"messages": keys, "bytes": keys},
        errors=[{"topic": "orders", "kind": "ValueError", "dead": 3, "error": error}],
        cursors=[{"topic": "orders", "cursor": "billing", "lag": 1_234_567, "partitions": []}],
    )


def verdict() -> Verdict:
    bins = 200
    names = ("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom")
    rate: dict[str, Any] = {name: [12_345 if name in names[:3] else n % 3 for n in range(bins)] for name in names}
    rate |= {"from_ms": FROM_MS, "bin_ms": 1000, "latency_p50_ms": [4] * bins, "latency_p99_ms": [None, *[900] * 199]}
    flaws = {"lost": 1, "duplicated": 2, "out_of_order": 3, "phantom": 4, "malformed": 0}
    row = {"topic": "orders", "partition": 0, "sent": 10_000_000, "acknowledged": 9_999_999, "received": 9, **flaws}
    lost = {"topic": "orders", "partition": 0, "id": f"{KEY}/17", "sequence": 17, "sent_ms": FROM_MS, "receiver": None}
    return Verdict(
        counts=Counter({"sent": 10_000_000, "acknowledged": 9_999_999, "received": 10_000_000, **flaws}),
        topics=[row],
        receivers=[],
        latency_ms={"p50": 4, "p99": 900, "max": 1000, "min": 1, "negative": 0},
        rate=rate,
        examples={"lost": [lost]},
    )


PAGES = {
    "audit": lambda: audit_page.drawn(verdict()),
    "insight-minutes": lambda: insight_page.drawn(insight(30, 2000)),
    "insight-weeks": lambda: insight_page.drawn(insight(120, 6 * 3_600_000)),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield running
        running.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_readable_without_a_network(name: str, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.html"
    file.write_text(PAGES[name](), "utf-8")
    schemes: list[tuple[Literal["light", "dark"], int]] = [("light", 1360), ("dark", 2200), ("dark", 390)]
    for scheme, width in schemes:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        asked: list[str] = []

        def note(request: Request, asked: list[str] = asked) -> None:
            asked.append(request.url)

        page.on("request", note)
        page.goto(file.as_uri())
        assert asked == [file.as_uri()]
        assert not page.evaluate(SIDEWAYS), "only charts and tables scroll to the side, not the page"
        overlaps = page.evaluate(OVERLAPS)
        assert len(overlaps) >= 3 and not any(overlaps)
        if folder := os.environ.get("HOLDFAST_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}-{scheme}-{width}.png", full_page=True)
        context.close()


def test_colours_stand_out_in_light_and_dark() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", charts._STYLE, re.DOTALL)
    for style in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", style))
        back = colours.pop("back")
        for name, colour in colours.items():
            assert contrast(colour, back) >= CONTRAST_OTHERS.get(name, CONTRAST_TEXT), name


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
