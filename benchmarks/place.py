"""Which cores server and generator run on.

One message at a time, sharing a core is a switch from one process to the other, while on two cores each
waits until the other's idle core has woken up. On a virtual machine that wait is longer than a server's own
work for the message. Left alone, the scheduler puts one server here and the next there. So the place is part
of the load's shape: it is set, tried and named.
"""

import os
from typing import Literal

from benchmarks.process import Server

Place = Literal["one core", "two cores", "any core"]

EVERY: tuple[Place, ...] = ("one core", "two cores", "any core")


def put(server: Server, place: Place) -> set[int]:
    """Move the server to its cores; the cores that are left for the generator."""
    cores = sorted(os.sched_getaffinity(0))
    if place == "any core":
        server.pin(set(cores))
        return set(cores)
    server.pin({cores[0]})
    return {cores[0] if place == "one core" else cores[-1]}
