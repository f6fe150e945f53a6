"""The documentation of processing: its example runs and its numbers are the program's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.broker.processing import COMMIT_MESSAGES_MAX, Dropped, Transformed, processed_topic
from holdfast.model.errors import BadTopicName
from holdfast.model.limits import (
    PROCESSOR_ATTEMPTS_MAX,
    PROCESSOR_INFLIGHT_PER_PARTITION,
    PROCESSOR_TIMEOUT_MS,
    TOPIC_NAME_BYTES_MAX,
)
from holdfast.processors.pool import WARNINGS
from holdfast.processors.spec import ProcessorSpec
from tests.processors.processor_helpers import StartPool, message

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "processing.md").read_text("utf-8")


async def test_the_example_runs(start_pool: StartPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "pricing.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    pool = await start_pool(spec=ProcessorSpec(function="pricing:add_tax"))
    outcome = await pool.run(message('{"net": 100}'))
    assert isinstance(outcome, Transformed)
    assert json.loads(outcome.value) == {"net": 100, "gross": 119.0}
    assert await pool.run(message('{"net": 0}')) == Dropped()


def test_the_numbers_are_the_programs() -> None:
    assert f"`processor_inflight` ({PROCESSOR_INFLIGHT_PER_PARTITION})" in TEXT
    assert f"at most {2 * PROCESSOR_INFLIGHT_PER_PARTITION} of them in memory" in TEXT
    assert f"at most {COMMIT_MESSAGES_MAX} messages a partition" in TEXT
    assert f"| `processor_attempts` | {PROCESSOR_ATTEMPTS_MAX} |" in TEXT
    assert f"| `processor_timeout_ms` | {PROCESSOR_TIMEOUT_MS} |" in TEXT
    longest = TOPIC_NAME_BYTES_MAX - len(".processed")
    assert f"longer than {longest} characters" in TEXT
    processed_topic("x" * longest)
    with pytest.raises(BadTopicName):
        processed_topic("x" * (longest + 1))


def test_every_event_that_is_named_is_one_and_every_warning_is_written_somewhere() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src/holdfast/processors").glob("*.py"))
    written = set(re.findall(r'_log\(\s*"(processor_\w+)"', source))
    assert written >= WARNINGS
    settings = {
        "processor_topics",
        "processor_workers",
        "processor_attempts",
        "processor_timeout_ms",
        "processor_inflight",
    }
    assert set(re.findall(r"`(processor_\w+)`", TEXT)) - settings <= written
