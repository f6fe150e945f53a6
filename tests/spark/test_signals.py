"""A signal to all processes of a pipeline, as service managers send it, ends it as one to the command does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from testkit.spark import DriverProcess

from holdfast.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(300)]

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


def test_batch_under_way_is_finished_when_a_whole_process_group_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FUNCTION)
    options = ["--source", "numbers", "--target", "copied", "--function", f"{tmp_path / 'shop.py'}:patient"]
    options += ["--checkpoint", str(tmp_path / "checkpoint"), "--json"]
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.publish_many("numbers", [b"%d" % number for number in range(100)])
        options += ["--server", cluster.http_addresses[0]]
        with DriverProcess("transform", *options, log=tmp_path / "said", master="local[1]") as driver:
            driver.wait_until((tmp_path / "begun").exists, "the function is called")
            driver.send(signal.SIGTERM)
            driver.wait_until(lambda: "stops when its batch is done" in driver.log(), "it hears")
            (tmp_path / "go on").touch()
            done = driver.ended()
        assert "Traceback" not in driver.log() and "Py4J" not in driver.log()
        assert (done["read"], done["made"], done["stopped"]) == (100, 100, True)
        assert [int(message.value) for message in broker.read("copied", messages_max=1000)] == list(range(100))
