"""A slow and lossy network is what it says: late, lossy, and cut where it is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from testkit.machine import CannotBreak, call
from testkit.network.router import DEVICE, Router
from testkit.network.slow_links import SlowLinks, why_not_slow

ECHO = """
import socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("0.0.0.0", 21000))
print("ready", flush=True)
while True:
    data, sender = here.recvfrom(100)
    here.sendto(data, sender)
"""
ASK = """
import socket, sys, threading, time
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.connect((sys.argv[1], 21000))
here.settimeout(1.5)
count, sent, trips = int(sys.argv[2]), {}, []

def receive():
    try:
        while len(trips) < count:
            trips.append(time.monotonic() - sent[int(here.recv(100))])
    except TimeoutError:
        pass

receiving = threading.Thread(target=receive)
receiving.start()
for number in range(count):
    sent[number] = time.monotonic()
    here.send(b"%d" % number)
    time.sleep(0.002)
receiving.join()
print(len(trips), sum(trips) / len(trips) if trips else 0)
"""


@pytest.fixture
def wires() -> Iterator[SlowLinks]:
    if (reason := why_not_slow()) is not None:
        pytest.skip(reason)
    try:
        made = SlowLinks(3)
    except CannotBreak as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


def packet(number: int, target: bytes) -> bytes:
    """As much of an IPv4 packet as a router looks at."""
    return b"\x45" + bytes(15) + target + b"%4d" % number


def test_router_delays_each_packet_by_its_own_time_and_loses_its_share() -> None:
    now_s, here, there = 0.0, b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02"
    reading, writing = os.pipe()
    try:
        router = Router({here: writing}, clock=lambda: now_s)
        router.set(delay_ms=100, jitter_ms=50, loss=0.05, seed=1)
        for number in range(1000):
            router.take(packet(number, here))
        router.take(packet(0, there))  # nobody has that address
        router.take(b"\x60" + bytes(39))  # no IPv4
        arrived: list[tuple[float, int]] = []
        while (wait_s := router.deliver()) is not None:
            assert wait_s > 0
            now_s += wait_s
            wait_s = router.deliver()
            data = os.read(reading, 1 << 16)
            arrived += [(now_s, int(data[end - 4 : end])) for end in range(24, len(data) + 1, 24)]
            if wait_s is None:
                break
    finally:
        os.close(reading)
        os.close(writing)
    assert 930 <= len(arrived) <= 970 and len({number for _, number in arrived}) == len(arrived)
    times = [at for at, _ in arrived]
    assert 0.05 <= min(times) < 0.06 and 0.14 < max(times) <= 0.15
    assert [number for _, number in arrived] != sorted(number for _, number in arrived), "packets overtake each other"


@pytest.mark.root
def test_what_is_to_be_slow_is_slow_and_what_is_cut_is_cut(wires: SlowLinks) -> None:
    echoes = [
        subprocess.Popen([*wires.entering(index), sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        for index in (1, 2)
    ]
    try:
        for echo in echoes:
            assert echo.stdout is not None and echo.stdout.readline() == b"ready\n"
        assert ask(wires, 1, 20)[0] > 0 and not is_slow(wires, 0, 1)
        wires.slow_down([(0, 1), (1, 0)], delay_ms=100, jitter_ms=50, loss=0.05, seed=1)
        assert is_slow(wires, 0, 1) and is_slow(wires, 1, 0)
        assert not is_slow(wires, 0, 2) and not is_slow(wires, 2, 1), "other ways are as fast as before"
        arrived, trip_s = ask(wires, 1, 400)
        assert 0 < arrived < 400 and trip_s > 0.18, "100 ms each way, and some are lost"
        assert ask(wires, 2, 20)[0] > 0
        wires.cut(0, 1)
        assert ask(wires, 1, 20)[0] == 0
        wires.heal()
        assert ask(wires, 1, 100)[1] > 0.18, "what was slow before it was cut is slow again"
        wires.speed_up()
        assert ask(wires, 1, 20)[0] > 0 and not is_slow(wires, 0, 1)
    finally:
        for echo in echoes:
            echo.kill()
            echo.communicate()


def ask(wires: SlowLinks, index: int, count: int) -> tuple[int, float]:
    command = [*wires.entering(0), sys.executable, "-c", ASK, wires.host(index), str(count)]
    arrived, trip_s = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split()
    return int(arrived), float(trip_s)


def is_slow(wires: SlowLinks, sender: int, receiver: int) -> bool:
    """Whether the way is one through the router."""
    return f"dev {DEVICE} " in call("ip", "-n", wires.namespace(sender), "route", "get", wires.host(receiver))
