"""The examples in docs/client.md run as they stand, and its lists are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from client_servers import BrokerProcess

import holdfast.client

DOCUMENT = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: str(EXAMPLES.index(text)))
def test_example_in_the_documentation_runs(example: str, shared_broker: BrokerProcess) -> None:
    assert "holdfast://127.0.0.1:8090" in example
    script = example.replace("holdfast://127.0.0.1:8090", shared_broker.url)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_every_method_and_every_error_is_in_the_documentation() -> None:
    methods = {name for name in vars(holdfast.client.Client) if not name.startswith("_")} - {"close"}
    assert [name for name in methods if f"{name}(" not in DOCUMENT] == []
    of_subscriptions = {"get", "take", "batches", "ack_all"}
    assert [name for name in of_subscriptions if f"{name}(" not in DOCUMENT] == []
    fields = {name for name in vars(holdfast.client.message.MessageFields) if not name.startswith("_")} - {"stored"}
    assert [name for name in fields if f"`{name}" not in DOCUMENT] == []
