"""What docs/queue.md shows, typed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

from tests.docs.console import DOCS, check_block, console_blocks


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page talks to the broker with curl")
def test_commands_of_the_queue_page_print_what_it_says(tmp_path: Path) -> None:
    blocks = console_blocks((DOCS / "queue.md").read_text("utf-8"))
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        with BrokerProcess(tmp_path / str(number)) as broker:
            check_block(block, broker)
