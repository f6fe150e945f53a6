"""A cable to one address that can be cut without either end being told, as real ones are."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_LINGER_ZERO = struct.pack("ii", 1, 0)


class Cable:
    """Carries bytes to a port of this machine. While it is cut, nothing arrives and nobody hears that it does not."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        """Connections of before are lost, as they are when both ends have given them up."""
        self._is_whole.set()
        for each in list(self._sockets):
            self._end(each)

    def close(self) -> None:
        self._server.close()
        self.mend()

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._server.accept()
            except OSError:
                return
            if not self._is_whole.is_set():
                self._sockets.add(came)  # it hangs, as packets that nobody answers do
                continue
            try:
                out = socket.create_connection(self._target, timeout=5)
            except OSError:
                # Nobody listens there: the one who calls must hear that, as it would without a cable.
                came.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                came.close()
                continue
            out.settimeout(None)
            self._sockets |= {came, out}
            for source, target in ((came, out), (out, came)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._is_whole.wait()
                target.sendall(data)
        self._end(source)
        self._end(target)

    def _end(self, each: socket.socket) -> None:
        self._sockets.discard(each)
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
