from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from testkit.http_client import Client
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.testing.ports import free_port
from tests.proxy.proxies import Brokers


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[str, int], Brokers]]:
    """Makes groups of brokers, each a process of its own."""
    with ExitStack() as stack:

        def make(name: str, count: int) -> Brokers:
            names = [f"{name}{number}" for number in range(1, count + 1)]
            ports = {node: free_port() for node in names}
            peers = ",".join(f"{node}=127.0.0.1:{port}" for node, port in ports.items())
            processes = {}
            for node, port in ports.items():
                flags = ("--node", node)
                if count > 1:
                    flags += ("--peer", f"127.0.0.1:{port}", "--peers", peers)
                processes[node] = BrokerProcess(tmp_path / node, *flags, http_port=free_port())
            threads = [threading.Thread(target=process.start) for process in processes.values()]
            for process in processes.values():
                stack.push(process)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)

            def are_ready() -> bool:
                return all(Client(process.http_port).get("/ready").status == 200 for process in processes.values())

            wait_until(are_ready, f"group {name} is ready")
            return Brokers(processes)

        yield make
