"""One worker process as the broker sees it: started, asked, and killed by its own id when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final

import msgspec

from holdfast.model.errors import ConfigError
from holdfast.model.limits import MIB
from holdfast.processors import protocol

# Importing a function may load a large library from a cold disk.
START_TIMEOUT_S: Final = 60.0
# A worker leaves at once when its stdin closes; one that does not is in the kernel's hands.
CLOSE_TIMEOUT_S: Final = 2.0
KILL_TIMEOUT_S: Final = 5.0
_BUFFER_BYTES: Final = 1 * MIB


class WorkerLost(Exception):
    """The process can no longer be used: it hung, died or broke the protocol."""

    def __init__(self, reason: str, *, hung: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hung = hung


class Child:
    """A running worker. Not for two callers at once."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls, arguments: list[str], timeout_s: float = START_TIMEOUT_S) -> Child:
        """Start a worker and wait for its greeting; `ConfigError` if it cannot do what is configured."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.processors.worker",
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            limit=_BUFFER_BYTES,
        )
        child = cls(process)
        try:
            await child._greeted(" ".join(arguments), timeout_s)
        except BaseException:
            await child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exited(self) -> bool:
        return self._process.returncode is not None

    async def ask(self, request: bytes, timeout_s: float) -> protocol.Reply:
        """Have one message processed; `WorkerLost` means that this worker must be killed and replaced."""
        try:
            async with asyncio.timeout(timeout_s):
                self._stdin.write(request)
                await self._stdin.drain()
                return protocol.decode_reply(await self._frame())
        except TimeoutError as error:
            raise WorkerLost(f"no answer within {timeout_s * 1000:.0f} ms", hung=True) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerLost(f"the worker process ended: {await self._ending()}") from error
        except (ValueError, msgspec.DecodeError) as error:
            raise WorkerLost(f"the worker process broke the protocol: {error}") from error

    async def kill(self) -> None:
        """End it now, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._gone(KILL_TIMEOUT_S)

    async def close(self) -> None:
        """Let it leave by closing its stdin, and kill it if it stays."""
        self._stdin.close()
        if not await self._gone(CLOSE_TIMEOUT_S):
            await self.kill()

    async def _greeted(self, what: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                greeting = protocol.decode_greeting(await self._frame())
        except TimeoutError as error:
            raise ConfigError(f"the processor ({what}) was not ready within {timeout_s:.0f} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConfigError(
                f"the processor ({what}) ended its process while it was loaded: {await self._ending()}"
            ) from error
        except (ValueError, msgspec.DecodeError) as error:
            raise ConfigError(f"the processor ({what}) broke the protocol while it was loaded: {error}") from error
        if isinstance(greeting, protocol.Refused):
            raise ConfigError(greeting.error)
        if greeting.version != protocol.PROTOCOL_VERSION:
            raise ConfigError(f"the installed worker speaks version {greeting.version}: restart the broker")

    async def _frame(self) -> bytes:
        length = protocol.body_length(await self._stdout.readexactly(protocol.LENGTH.size))
        return await self._stdout.readexactly(length)

    async def _gone(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def _ending(self) -> str:
        """How a process ended whose stream did: its exit status or signal."""
        await self._gone(CLOSE_TIMEOUT_S)
        status = self._process.returncode
        if status is None:
            return "it closed its streams"
        if status >= 0:
            return f"exit status {status}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
        return f"killed by signal {-status}"
