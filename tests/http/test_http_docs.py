"""Nothing the broker can say is missing in the reference, and the reference invents nothing."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from testkit.http_client import Client
from testkit.postgres import database_for
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

import holdfast.client
import holdfast.frontends.http
import holdfast.pipelines.errors
import holdfast.recovery.errors
import holdfast.spark.errors  # noqa: F401 - likewise
from holdfast.frontends.http.routes import ROUTES
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import TopicName
from holdfast.model.messages import NewMessage
from holdfast.node.config import Config
from holdfast.node.node import Node
from holdfast.testing.ports import free_port

DOCS = Path(__file__).parents[2] / "docs"


def all_errors(base: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    found = [base]
    for one in base.__subclasses__():
        found += all_errors(one)
    return [one for one in found if one.__module__.startswith("holdfast.")]


def table_rows(name: str) -> dict[str, list[str]]:
    """By their first cell, the cells of the rows whose first cell is code."""
    rows = {}
    for line in (DOCS / name).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        match = re.fullmatch(r"`([\w{}]+)`", cells[0])
        if line.startswith("|") and match:
            rows[match[1]] = cells[1:]
    return rows


def test_every_error_code_is_explained() -> None:
    abstract = {"error", "bad_request", "remote"}
    known = {one.code: one for one in all_errors() if one.code not in abstract}
    rows = table_rows("errors.md")
    # The client gives this code to answers that it does not understand, without a class of their own.
    assert set(rows) - {"bad_answer"} == set(known)
    for code, (status, meaning, remedy) in rows.items():
        if status != "–":
            assert int(status) == known[code].http_status, code
        assert len(meaning) > 15 and len(remedy) > 10, code


def test_every_metric_is_explained(tmp_path: Path) -> None:
    measured = [*asyncio.run(metrics_of_a_node(tmp_path)), *asyncio.run(metrics_of_a_store(tmp_path / "store"))]
    families: dict[str, dict[str, Any]] = {}
    for family in measured:
        families.setdefault(family["name"], {**family, "samples": []})["samples"] += family["samples"]
    rows = table_rows("metrics.md")
    assert set(rows) == set(families)
    for name, family in families.items():
        kind, labels, meaning = rows[name]
        assert kind == family["type"], name
        used = {label for sample in family["samples"] for label in sample["labels"]}
        assert used == set(re.findall(r"`(\w+)`", labels)), name
        assert len(meaning) > 10


async def metrics_of_a_node(path: Path) -> list[dict[str, Any]]:
    """Everything a node of a pair measures, with a processor, a topic, a cursor and an error."""
    ports = {name: free_port() for name in ("n1", "n2")}
    peers = [f"{name}=127.0.0.1:{port}" for name, port in ports.items()]
    nodes = [
        Node(
            Config(
                data=str(path / name),
                node=name,
                peer=f"127.0.0.1:{port}",
                peers=peers,
                text="127.0.0.1:0",
                http="127.0.0.1:0",
                pair="primary" if name == "n1" else "backup",
                compute_ms="0:0",
                processor_workers=1,
            )
        )
        for name, port in ports.items()
    ]
    await asyncio.gather(*(node.start() for node in nodes))
    node = nodes[0]
    try:
        await node.broker.publish("orders", [NewMessage(value=b"a")])
        while node.broker.backend.topic(TopicName("orders.processed")) is None:
            await asyncio.sleep(0.01)
        await node.broker.seek_cursor("orders", "billing", "earliest")
        await asyncio.to_thread(client_at(node.addresses["http"]).get, "/nothing")
        return await asyncio.to_thread(metrics_at, node.addresses["http"])
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def metrics_of_a_store(path: Path) -> list[dict[str, Any]]:
    """Everything a broker over a database measures."""
    node = Node(Config(store=database_for(path), text="127.0.0.1:0", http="127.0.0.1:0"))
    await node.start()
    try:
        return await asyncio.to_thread(metrics_at, node.addresses["http"])
    finally:
        await node.stop()


def client_at(address: str) -> Client:
    return Client(int(address.rpartition(":")[2]))


def metrics_at(address: str) -> list[dict[str, Any]]:
    families: list[dict[str, Any]] = client_at(address).get("/metrics").json["metrics"]
    return families


def test_every_call_is_in_the_http_reference() -> None:
    text = (DOCS / "http.md").read_text()
    for route in ROUTES:
        path = route.path
        assert f"{route.method} {path}" in text, f"{route.method} {path}"
        for param in route.query:
            assert f"`{param.name}`" in text or f"{param.name}=" in text, (route.operation, param.name)


def blocks(language: str) -> list[str]:
    """The blocks of the section on clusters."""
    section = (DOCS / "http.md").read_text().split("## In a cluster", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the reference talks to the broker with curl")
def test_commands_of_the_cluster_section_run_and_print_what_it_shows(tmp_path: Path) -> None:
    ports: dict[str, int] = {}

    def moved(text: str) -> str:
        """The same on ports that are free here."""
        return re.sub(r"(127\.0\.0\.1|localhost):(\d{4})\b", lambda m: f"{m[1]}:{port_of(m[2])}", text)

    def port_of(shown: str) -> int:
        return ports.setdefault(shown, free_port())

    [start] = blocks("sh")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    running = subprocess.Popen(
        ["bash", "-c", moved(start) + "\nwait"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for shown in ("8091", "8092", "8093"):
            wait_until(partial(is_ready, port_of(shown)), "all nodes are ready")
        for block in blocks("console"):
            for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
                ran = subprocess.run(
                    ["bash", "-c", moved(command)], env=environment, capture_output=True, text=True, timeout=60
                )
                assert ran.returncode == 0, f"{command}: {ran.stderr}"
                assert "error" not in ran.stdout, f"{command}: {ran.stdout}"
                if shown:
                    assert ran.stdout.splitlines() == shown.splitlines(), command
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(30)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the reference talks to the broker with curl")
def test_commands_of_push_and_pop_run_and_print_what_it_shows(tmp_path: Path) -> None:
    section = (DOCS / "http.md").read_text().split("## Push and pop", 1)[1].split("\n## ", 1)[0]
    assert "holdfast serve --queen 127.0.0.1:6632" in section
    with BrokerProcess(tmp_path / "data", "--queen", f"127.0.0.1:{(port := free_port())}"):
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
            for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
                typed = command.replace("localhost:6632", f"127.0.0.1:{port}")
                ran = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, timeout=60)
                assert ran.returncode == 0 and ran.stdout and '"error"' not in ran.stdout, command
                if shown:
                    printed = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", ran.stdout)
                    assert printed.splitlines() == shown.splitlines(), command


def is_ready(port: int) -> bool:
    try:
        return Client(port).get("/ready").status == 200
    except OSError:
        return False
