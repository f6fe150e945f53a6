"""A signal to all processes of a pipeline, as service managers send it, ends it as one to the command does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from testkit.commands import HOLDFAST, environment
from testkit.wait import wait_until

from holdfast.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# It waits in the middle of a batch until it may go on.
FUNCTION = """
import pathlib
import time

HERE = pathlib.Path(__file__)


def patient(batch):
    HERE.with_name("begun").touch()
    while not HERE.with_name("go on").exists():
        time.sleep(0.05)
    return batch.select(["value"])
"""
ENDS_S = 120.0


def test_batch_under_way_is_finished_when_a_whole_process_group_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FUNCTION)
    options = ["--source", "numbers", "--target", "copied", "--function", f"{tmp_path / 'shop.py'}:patient"]
    options += ["--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[1]", "--json"]
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.publish_many("numbers", [b"%d" % number for number in range(100)])
        said = tmp_path / "said"
        with said.open("wb") as errors:
            command = subprocess.Popen(
                [*HOLDFAST, "pipeline", "transform", *options, "--server", cluster.url.removeprefix("holdfast://")],
                env=environment(HOLDFAST_SPARK_CLASS_ARCHIVE="use"),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            begun = tmp_path / "begun"
            wait_until(lambda: begun.exists() or command.poll() is not None, "the function is called")
            os.killpg(command.pid, signal.SIGTERM)
            wait_until(
                lambda: b"stops when its batch is done" in said.read_bytes() or command.poll() is not None, "it hears"
            )
            (tmp_path / "go on").touch()
            told, _ = command.communicate(timeout=ENDS_S)
        finally:
            command.kill()
            command.wait()
        assert command.returncode == 0, said.read_text()
        assert "Traceback" not in said.read_text() and "Py4J" not in said.read_text()
        done = json.loads(told.splitlines()[-1])
        assert (done["read"], done["made"], done["stopped"]) == (100, 100, True)
        assert [int(message.value) for message in broker.read("copied", messages_max=1000)] == list(range(100))
