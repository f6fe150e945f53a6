"""The examples in docs/client.md run as they stand, and its lists are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

import holdfast.client

DOCUMENT = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: str(EXAMPLES.index(text)))
def test_example_in_the_documentation_runs(example: str, shared_broker: BrokerProcess) -> None:
    assert "holdfast://127.0.0.1:8090" in example or "localhost:8080" in example
    script = example.replace("holdfast://127.0.0.1:8090", shared_broker.url)
    # Two names of one broker: messages that come over both are shown once, as with a pair.
    host, port = shared_broker.text_address
    script = script.replace("localhost:8080", f"{host}:{port}").replace("localhost:8081", f"localhost:{port}")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_every_method_and_every_error_is_in_the_documentation() -> None:
    methods = {name for name in vars(holdfast.client.Client) if not name.startswith("_")} - {"close"}
    assert [name for name in methods if f"{name}(" not in DOCUMENT] == []
    of_a_pair = {
        name
        for kind in (holdfast.client.PairPublisher, holdfast.client.PairSubscriber)
        for name in vars(kind)
        if not name.startswith("_")
    } - {"close"}
    assert [name for name in of_a_pair if f"`{name}" not in DOCUMENT] == []
    fields_of_a_pair = {*holdfast.client.PairMessage._fields, *holdfast.client.PairPublished._fields}
    assert [name for name in fields_of_a_pair if f"`{name}" not in DOCUMENT] == []
    of_subscriptions = {"get", "take", "batches", "ack_all"}
    assert [name for name in of_subscriptions if f"{name}(" not in DOCUMENT] == []
    fields = {name for name in vars(holdfast.client.message.MessageFields) if not name.startswith("_")} - {"stored"}
    assert [name for name in fields if f"`{name}" not in DOCUMENT] == []
