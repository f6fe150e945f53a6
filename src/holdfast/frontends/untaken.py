"""How much of what was written to a connection its client's machine has not acknowledged."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios


def untaken_bytes(transport: asyncio.WriteTransport) -> int | None:
    """Counts this process's buffer and the kernel's; `None` if nobody can tell any more.

    The kernel takes what it is given in large lumps, so the buffer of this process alone does not show a slow reader.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, ValueError):
        return None
    return transport.get_write_buffer_size() + int(struct.unpack("i", answer)[0])
