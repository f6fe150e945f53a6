"""`holdfast pipeline transform` says what is wrong before Spark starts, and through kills takes each message once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import BlockingClient
from holdfast.pipelines.errors import BadPipelineSetting
from holdfast.pipelines.transform_functions import Found
from holdfast.pipelines.transform_plans import Transform
from holdfast.testing import LocalCluster
from tests.cli.program import HOLDFAST, environment, holdfast
from tests.support.broker_process import wait_until

MESSAGES = 150
FUNCTION = """
import time

import pyarrow as pa


def doubled(batch):
    numbers = [int(value) for value in batch["value"].to_pylist()]
    time.sleep(0.005 * len(numbers))
    return pa.table({"value": [str(2 * number) for number in numbers]})
"""
USE_ARCHIVE = {"HOLDFAST_SPARK_CLASS_ARCHIVE": "use"}
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "what is read? Give --source [bad_option]"),
        (("--source", "a", "--target", "b"), "Give --checkpoint [bad_option]"),
        (("--source", "a", "--target", "b", "--checkpoint", "c"), "give a function or sql, one of both [bad_option]"),
        (("--source", "a", "--target", "b", "--checkpoint", "c", "--starting", "now"), "earliest or latest"),
        (("--source", "a", "--target", "b", "--checkpoint", "c", "--function", "nothing:f"), "[bad_function]"),
    ],
)
def test_what_is_wrong_is_told_before_spark_starts(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "transform", *options)
    assert ended.code == 1 and words in ended.err and "Traceback" not in ended.err


def test_settings_of_a_file_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "transform.toml"
    file.write_text('[transform]\nsource = "a"\ntarget = "a"\ncheckpoint = "c"\nsql = "SELECT 1"\nbatch_rows = 5\n')
    ended = holdfast("pipeline", "transform", "--config", str(file))
    assert ended.code == 1 and "target has to be another topic than source" in ended.err


def numbers_of(broker: BlockingClient, topic: str) -> Counter[bytes]:
    return Counter(message.value for message in broker.read(topic, offset=0, messages_max=10_000))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_driver_that_is_killed_leaves_each_message_once_made_or_dead(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FUNCTION)
    values = [b"x%d" % number if number % 7 == 3 else b"%d" % number for number in range(MESSAGES)]
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.create_topic("orders")
        broker.publish_many("orders", values)
        server = cluster.url.removeprefix("holdfast://")
        command = ["pipeline", "transform", "--source", "orders", "--target", "made", "--server", server, *SMALL]
        command += ["--function", f"{tmp_path / 'shop.py'}:doubled", "--checkpoint", str(tmp_path / "checkpoint")]
        command += ["--batch-messages", "30", "--batch-rows", "10", "--interval", "1ms"]
        env = environment(**USE_ARCHIVE)
        # A group of its own: Python, Java and all their children are killed at once.
        with open(tmp_path / "log", "wb") as log:
            driver = subprocess.Popen([*HOLDFAST, *command], env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(lambda: _messages(broker, "made") > 0, "a batch is written", 120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert _messages(broker, "made") < MESSAGES / 2, "it was in the middle"
        ended = subprocess.run([*HOLDFAST, *command, "--once", "--json"], env=env, capture_output=True, timeout=200)
        assert ended.returncode == 0, ended
        assert numbers_of(broker, "made") == Counter(b"%d" % (2 * int(value)) for value in values if value.isdigit())
        assert numbers_of(broker, "orders.dead") == Counter(value for value in values if not value.isdigit())
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (told["source"], told["target"], told["lag"], told["stopped"]) == ("orders", "made", 0, False)
    assert 0 < told["made"] + told["dead"] == told["read"] <= MESSAGES


def _messages(broker: BlockingClient, topic: str) -> int:
    return sum(described.messages for described in broker.topics() if described.topic == topic)
