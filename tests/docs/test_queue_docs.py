"""What docs/queue.md shows, typed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

from tests.docs.test_readme import DEFAULT_HTTP, commands_of, http_of

QUEUE = Path(__file__).parents[2] / "docs" / "queue.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page talks to the broker with curl")
def test_commands_of_the_queue_page_print_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"<!-- runs in CI -->\n```console\n(.*?)```", QUEUE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        with BrokerProcess(tmp_path / str(number)) as broker:
            for command, expected in commands_of(block):
                typed = DEFAULT_HTTP.sub(http_of(broker), command)
                printed = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, timeout=30, check=True)
                assert printed.stdout.strip() == "\n".join(expected).strip(), command
