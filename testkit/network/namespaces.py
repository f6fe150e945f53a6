"""A network of our own: a namespace for each node, a bridge that joins them, and one-way drops between any two.

::

    this machine's namespace ── bridge 10.213.<x>.254 ─┬─ n1 10.213.<x>.1
                                                       ├─ n2 10.213.<x>.2
                                                       └─ n3 10.213.<x>.3

A way is cut by telling the sender a hardware address that nobody has: its frames leave and reach no one, as on a
network that loses them. Connections stay open, nothing is refused, and the other direction works. Clients stand on
the bridge and reach every node at any time. For root only.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from typing import Final

from testkit.machine import CannotBreak, call

_NOBODY: Final = "02:00:00:00:ff:ff"
_NETWORKS: Final = range(1, 250)


class Network:
    """Namespaces for so many nodes; `close` takes everything away again."""

    def __init__(self, nodes: int) -> None:
        self._count = nodes
        self._cut: set[tuple[int, int]] = set()
        self.number = self._claim()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _claim(self) -> int:
        """Making the bridge is the claim: two runs at once cannot both make it."""
        last = "no number is free"
        for number in random.SystemRandom().sample(_NETWORKS, len(_NETWORKS)):
            try:
                call("ip", "link", "add", f"hfb{number}", "type", "bridge")
            except CannotBreak as error:
                last = str(error)
                if "exists" not in last:
                    break
            else:
                return number
        raise CannotBreak(last)

    def _build(self) -> None:
        bridge = f"hfb{self.number}"
        call("ip", "address", "add", f"{self.outside}/24", "dev", bridge)
        call("ip", "link", "set", bridge, "up")
        for index in range(self._count):
            name, outside = self.namespace(index), f"hfv{self.number}-{index}"
            call("ip", "netns", "add", name)
            peer = ["peer", "name", "eth0", "netns", name, "address", self._hardware(index)]
            call("ip", "link", "add", outside, "type", "veth", *peer)
            call("ip", "link", "set", outside, "master", bridge, "up")
            call("ip", "-n", name, "address", "add", f"{self.host(index)}/24", "dev", "eth0")
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", "eth0", "up")

    def host(self, index: int) -> str:
        return f"10.213.{self.number}.{index + 1}"

    @property
    def outside(self) -> str:
        """The address of clients, as nodes see it."""
        return f"10.213.{self.number}.254"

    def namespace(self, index: int) -> str:
        return f"hf{self.number}-{index}"

    def entering(self, index: int) -> list[str]:
        """The words before a command that is to run as this node."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(index)}"]

    def _hardware(self, index: int) -> str:
        return f"02:00:00:00:{self.number:02x}:{index + 1:02x}"

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that `sender` sends reaches `receiver` any more."""
        self._tell(sender, receiver, _NOBODY)
        self._cut.add((sender, receiver))

    def cut_off(self, index: int) -> None:
        """Both ways between one node and all others."""
        for other in set(range(self._count)) - {index}:
            self.cut(index, other)
            self.cut(other, index)

    def heal(self) -> None:
        for sender, receiver in sorted(self._cut):
            self._tell(sender, receiver, self._hardware(receiver))
        self._cut.clear()

    def _tell(self, sender: int, receiver: int, hardware: str) -> None:
        where = ["dev", "eth0", "nud", "permanent"]
        call("ip", "-n", self.namespace(sender), "neigh", "replace", self.host(receiver), "lladdr", hardware, *where)

    def close(self) -> None:
        """A namespace that a dying process is still in goes with it; so does its end of the wire."""
        for index in range(self._count):
            self._quietly("ip", "link", "del", f"hfv{self.number}-{index}")
            if os.path.exists(f"/run/netns/{self.namespace(index)}"):  # noqa: PTH110 - not a file of ours
                self._quietly("ip", "netns", "del", self.namespace(index))
        self._quietly("ip", "link", "del", f"hfb{self.number}")

    def _quietly(self, *command: str) -> None:
        with contextlib.suppress(OSError):
            subprocess.run(command, capture_output=True, timeout=60, check=False)
