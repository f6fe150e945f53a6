"""The page at /docs in a real browser: it draws itself without a network, and its buttons work."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.http.http_server import Server

CHROMIUM = shutil.which("chromium")
ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, drawn; it must neither log an error nor ask anybody but the broker."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light")
    opened = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(f"{server.url}/docs")
    opened.wait_for_selector("html[data-drawn=yes]")
    yield opened
    shoot(opened)
    context.close()
    # A browser complains of every answer that is an error, which is no fault of the page.
    assert [text for text in complaints if not text.startswith("Failed to load resource")] == []
    assert [url for url in asked if not url.startswith((server.url, "data:"))] == []


def shoot(page: Page) -> None:
    """Keep a picture where somebody wants to look at it."""
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder:
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=False)


def try_it(page: Page, operation: str) -> None:
    page.click(f"#{operation} button[data-try]")
    page.wait_for_selector(f"#{operation} .result")


@needs_browser
def test_every_call_is_shown(page: Page, server: Server) -> None:
    spec = server.get("/openapi.json").json
    operations = {call["operationId"] for calls in spec["paths"].values() for call in calls.values()}
    assert set(page.eval_on_selector_all("details.call", "nodes => nodes.map(node => node.id)")) == operations
    assert page.locator("nav .list a").count() == len(operations)
    assert "takes messages" in page.inner_text("#state")
    for operation in operations:
        page.eval_on_selector(f"#{operation}", "node => { node.open = true }")
        page.wait_for_selector(f"#{operation} button[data-try]")


@needs_browser
def test_button_really_publishes_a_message(page: Page, server: Server) -> None:
    page.click("nav a[href='#publish']")
    page.fill("#publish input[name=topic]", "from-the-page")
    page.fill("#publish textarea", '{"messages": [{"value": "clicked <b>here</b>"}]}')
    try_it(page, "publish")
    assert "200" in page.inner_text("#publish .result .line")
    assert '"offset": 0' in page.inner_text("#publish .result pre")
    stored = server.get("/v1/topics/from-the-page/partitions/0/messages").json["messages"]
    assert [one["value"] for one in stored] == ["clicked <b>here</b>"]
    # The name that was typed is offered in the other calls, and markup in a message stays text.
    page.click("nav a[href='#read']")
    assert page.input_value("#read input[name=topic]") == "from-the-page"
    try_it(page, "read")
    assert "clicked <b>here</b>" in page.inner_text("#read .result pre")
    assert page.locator("#read .result b:has-text('here')").count() == 0


@needs_browser
def test_error_is_shown_as_it_came(page: Page) -> None:
    page.click("nav a[href='#describeTopic']")
    page.fill("#describeTopic input[name=topic]", "../etc|")
    try_it(page, "describeTopic")
    assert "400 Bad Request" in page.inner_text("#describeTopic .result .line")
    assert '"code": "bad_topic"' in page.inner_text("#describeTopic .result pre")
    page.click("#describeTopic button:has-text('curl')")
    assert "%2Fetc" in page.inner_text("#describeTopic pre.box")


@needs_browser
def test_stream_is_shown_while_it_comes(page: Page, server: Server) -> None:
    server.create("orders")
    page.click("nav a[href='#tail']")
    page.fill("#tail input[name=topic]", "orders")
    try_it(page, "tail")
    page.wait_for_selector("#tail .result button:has-text('Stop')")
    server.publish("orders", "streamed")
    page.wait_for_selector("#tail .result pre:has-text('streamed')")
    page.click("#tail .result button:has-text('Stop')")
    page.wait_for_selector("#tail .result button:has-text('Stop')", state="detached")


@needs_browser
def test_calls_are_found_by_typing(page: Page) -> None:
    page.fill("#filter", "ack")
    assert page.locator("nav .list a:visible").all_inner_texts() == ["POST\nAcknowledge messages"]
    assert page.locator("details.call:visible").count() == 1


@needs_browser
def test_light_and_dark_can_be_switched(page: Page) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@needs_browser
def test_page_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.eval_on_selector("#publish", "node => { node.open = true; node.scrollIntoView() }")
    page.wait_for_selector("#publish button[data-try]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_page_runs_only_its_own_script(server: Server) -> None:
    answer = server.get("/docs")
    policy = answer.headers["content-security-policy"]
    script = answer.body.decode().split("<script>")[1].split("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert b"http://" not in answer.body and b"https://" not in answer.body


def test_nothing_of_a_request_goes_into_the_page(server: Server) -> None:
    plain = server.get("/docs").body
    assert server.get("/docs", User_Agent="<script>alert(1)</script>", Referer="<b>").body == plain
    assert server.get("/docs?<script>").code == "bad_value"
