"""Spark as processes on this machine: a standalone cluster, and a pipeline's driver that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import pyspark

from holdfast.spark import class_archive
from holdfast.spark.java import find_java
from holdfast.testing import ports
from testkit.processes import children
from testkit.wait import wait_until

START_S: Final = 90.0
# A driver has to be at work within this time, and to end within it when it has little left to do.
WORK_S: Final = 240.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
# Small, and quick to start rather than fast in the long run.
_SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A session of a few hundred rows.
SMALL_SESSION: Final = {
    "spark.driver.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": _SMALL_JAVA,
}
# A task that fetches from an executor that was killed does not wait for it.
IMPATIENT: Final = {"spark.shuffle.io.maxRetries": "1", "spark.shuffle.io.retryWait": "1s"}


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
        return SMALL_SESSION | {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": self._java_options(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            # Executors are killed here by the dozen, and none of that is the application's fault.
            "spark.task.maxFailures": "20",
            "spark.deploy.maxExecutorRetries": "-1",
        }

    def executors(self) -> list[int]:
        """The processes of all executors."""
        found = []
        for worker in self._processes[1:]:
            for pid in children(worker.pid):
                with contextlib.suppress(OSError):
                    if EXECUTOR.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return found

    def lose_worker(self) -> None:
        """Kill a worker with its executors, as the loss of a machine does; another one comes in its place."""
        worker = self._processes.pop(1)
        self._hosts.pop(0)
        for pid in children(worker.pid):
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
                told: dict[str, Any] = json.load(answer)
                return told
        except (OSError, ValueError):
            return {}


class DriverProcess:
    """`holdfast pipeline …` in a process group of its own, so that Python, Java and their workers die together.

    Use it as a context: all of them are gone when the block is.
    """

    def __init__(
        self,
        *arguments: str,
        log: Path,
        master: str = "local[2]",
        config: Mapping[str, str] = SMALL_SESSION,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._directory = directory
        self._command = [sys.executable, "-m", "holdfast.cli", "pipeline", *arguments, "--master", master]
        self._command += conf_options(config)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._environment = {**plain, class_archive.SWITCH: "use", **(environment or {})}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DriverProcess:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        _pipe(self.process).close()
        self._process = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "use it as a context"
        return self._process

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """A signal to the whole group, as a service manager sends it."""
        os.killpg(self.process.pid, number)

    def kill(self) -> bool:
        """Kill the whole group; returns whether that is what ended the driver."""
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        return self.process.wait() == -signal.SIGKILL

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Until the condition holds; the driver must run when it does."""
        wait_until(lambda: condition() or not self.is_running, what, WORK_S)
        assert self.is_running, f"it ended with {self.process.poll()} before {what}:\n{self.log()[-2000:]}"

    def ended(self, *codes: int) -> dict[str, Any]:
        """Wait until it ends by itself, with 0 or one of these codes; its verdict with `--json`."""
        out, _ = self.process.communicate(timeout=WORK_S)
        assert self.process.returncode in (codes or (0,)), (
            f"it ended with {self.process.returncode}:\n{self.log()[-2000:]}"
        )
        verdict: dict[str, Any] = json.loads(out.splitlines()[-1])
        return verdict

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")


def conf_options(config: Mapping[str, str]) -> list[str]:
    """Spark's settings as options of a command."""
    return [word for name, value in config.items() for word in ("--conf", f"{name}={value}")]


def bare_python(directory: Path) -> Path:
    """A Python that cannot find Holdfast where executors run it: they have pyspark, pyarrow and numpy only."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "python"
    script.write_text(_BARE_PYTHON.format(python=sys.executable, packages=sysconfig.get_path("purelib")), "utf-8")
    script.chmod(0o755)
    return script


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout
