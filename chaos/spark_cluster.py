"""A standalone Spark cluster as processes on this machine: a master, workers, and the executors these start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from typing import Any, Final

import pyspark
from testkit.wait import wait_until

from holdfast.spark import class_archive
from holdfast.spark.java import find_java
from holdfast.testing import ports

START_S: Final = 90.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
# Small, and quick to start rather than fast in the long run.
_SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


_IS_EXECUTOR: Final = "HOLDFAST_CHAOS_IS_EXECUTOR"
# -S: no `.pth` files are read, and it is such a file that leads to Holdfast.
_BARE_PYTHON: Final = f"""#!/bin/sh
[ -z "${_IS_EXECUTOR}" ] && exec {{python}} "$@"
PYTHONPATH="$PYTHONPATH:{{packages}}" exec {{python}} -S "$@"
"""


class SparkCluster:
    """Use it as a context: all its processes, those of executors too, are gone when the block is."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._java = find_java()
        self._port, self._mark = ports.choose(1)
        self._page_port = self._port + 1
        self.master = f"spark://127.0.0.1:{self._port}"
        self._wanted_workers = workers
        self._workers_started = 0
        # The master's is the first; workers follow, and their hosts are in the same order.
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: list[str] = []

    def __enter__(self) -> SparkCluster:
        try:
            place = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page_port))
            self._start("master", _MASTER, *place)
            for _ in range(self._wanted_workers):
                self._start_worker()
            # Workers come while the driver starts: an application waits for them, but not for its master.
            wait_until(self._is_serving, "the master is there", START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Executors are children of their workers, which would take their time to end them.
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._mark.close()

    @property
    def config(self) -> dict[str, str]:
        """Settings for a session of this cluster whose executors are small."""
        return {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": self._java_options(),
            "spark.driver.extraJavaOptions": _SMALL_JAVA,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            # Executors are killed here by the dozen, and none of that is the application's fault.
            "spark.task.maxFailures": "20",
            "spark.deploy.maxExecutorRetries": "-1",
        }

    def executors(self) -> list[int]:
        """The processes of all executors."""
        found = []
        for worker in self._processes[1:]:
            for pid in _children(worker.pid):
                with contextlib.suppress(OSError):
                    if EXECUTOR.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return found

    def lose_worker(self) -> None:
        """Kill a worker with its executors, as the loss of a machine does; another one comes in its place."""
        worker = self._processes.pop(1)
        self._hosts.pop(0)
        for pid in _children(worker.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.kill()
        worker.wait()
        self._start_worker()

    def wait_for_workers(self) -> None:
        """Until the master knows of all of them, and none has anything to do."""

        def is_idle() -> bool:
            known = {worker["host"]: worker for worker in self._told().get("workers", ()) if worker["state"] == "ALIVE"}
            return all(host in known and not known[host]["coresused"] for host in self._hosts)

        wait_until(is_idle, "all workers are there and have nothing to do", START_S)

    def wait_until_at_work(self) -> None:
        """Until an executor runs on each worker."""

        def is_busy() -> bool:
            used = {worker["host"]: worker["coresused"] for worker in self._told().get("workers", ())}
            return all(used.get(host) for host in self._hosts)

        wait_until(is_busy, "all workers have something to do", START_S)

    def _start_worker(self) -> None:
        number = self._workers_started
        self._workers_started += 1
        # Hosts of their own: Spark tries a slow task again, while it runs, on another host only.
        host = f"127.0.0.{number + 1}"
        self._hosts.append(host)
        sizes = ("--cores", "1", "--memory", "1g", "--host", host, "--webui-port", "0")
        folder = ("--work-dir", str(self._directory / f"worker-{number}"))
        self._start(f"worker-{number}", _WORKER, *sizes, *folder, self.master)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(self._java.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options(),
            "SPARK_LAUNCHER_OPTS": _SMALL_JAVA,
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
            _IS_EXECUTOR: "yes",
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / f"{name}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [home / "bin" / "spark-class", main, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                )
            )

    def _java_options(self) -> str:
        return " ".join((*class_archive.java_options(self._java), _SMALL_JAVA))

    def _is_serving(self) -> bool:
        return self._told().get("status") == "ALIVE"

    def _told(self) -> dict[str, Any]:
        """What the master says of itself; nothing while it is not there."""
        for process in self._processes:
            assert process.poll() is None, f"a process of the cluster ended; see {self._directory}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/", timeout=5) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}


def bare_python(directory: Path) -> Path:
    """A Python that cannot find Holdfast where executors run it: they have pyspark, pyarrow and numpy only."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "python"
    script.write_text(_BARE_PYTHON.format(python=sys.executable, packages=sysconfig.get_path("purelib")), "utf-8")
    script.chmod(0o755)
    return script


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text("ascii").split())
    return found
