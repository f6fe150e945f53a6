"""`holdfast pipeline transform` says what is wrong before Spark starts, and through kills takes each message once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from chaos.campaigns import transform
from testkit.commands import holdfast
from testkit.sizes import LONG

from holdfast.pipelines.errors import BadPipelineSetting
from holdfast.pipelines.transform_functions import Found
from holdfast.pipelines.transform_plans import Transform

TIMEOUT_S = 1800 if LONG else 600


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give a function or sql"),
        ({"function": Found(print), "sql": "SELECT 1"}, "give a function or sql"),
        ({"sql": "SELECT 1", "target": "orders"}, "another topic than source"),
        ({"sql": "SELECT 1", "target": "orders.dead"}, "another topic than source"),
        ({"sql": "SELECT 1", "is_stateful": True}, "stateful goes with a function"),
        ({"function": Found(print), "window_s": 1, "watermark_s": 1}, "window goes with stateful"),
        ({"function": Found(print), "is_stateful": True, "window_s": 1}, "window needs a watermark"),
        ({"function": Found(print), "state_ttl_s": 1}, "state_ttl goes with stateful"),
        ({"function": Found(print), "watermark_s": 1}, "go with windows"),
        ({"function": Found(print), "event_time": "timestamp"}, "go with windows"),
        ({"function": Found(print), "batches": "numpy"}, "one of arrow, pandas"),
        ({"function": Found(print), "batch_rows_max": 0}, "at least 1"),
    ],
)
def test_settings_that_contradict_each_other_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadPipelineSetting, match=words):
        Transform(**{"source": "orders", "target": "made", **options})


def test_settings_of_a_file_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "transform.toml"
    file.write_text('[transform]\nsource = "a"\ntarget = "a"\ncheckpoint = "c"\nsql = "SELECT 1"\nbatch_rows = 5\n')
    ended = holdfast("pipeline", "transform", "--config", str(file))
    assert ended.code == 1 and "target has to be another topic than source" in ended.err


@pytest.mark.night
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S)
def test_driver_that_is_killed_leaves_each_message_once_made_or_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of `make chaos-transform`: a function, a statement and a state in one driver."""
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    dice, within_s = random.Random(8), TIMEOUT_S - 60  # A driver that hangs is ended, and a broker, before pytest is.
    found, expected = transform.run(5 if LONG else 1, dice, tmp_path, batches_ahead=12, within_s=within_s)
    assert found == expected
