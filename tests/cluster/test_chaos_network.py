"""A slow and lossy network is what it says: late, lossy, and cut where it is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from testkit.commands import CannotBreak
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


@pytest.mark.root
def test_what_is_to_be_slow_is_slow_and_what_is_cut_is_cut(wires: SlowLinks) -> None:
    echoes = [
        subprocess.Popen([*wires.entering(index), sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        for index in (1, 2)
    ]
    try:
        for echo in echoes:
            assert echo.stdout is not None and echo.stdout.readline() == b"ready\n"
        assert ask(wires, 1, 20)[0] == 20
        wires.slow_down([(0, 1), (1, 0)], delay_ms=100, jitter_ms=50, loss=0.05, seed=1)
        arrived, trip_s = ask(wires, 1, 400)
        assert 330 <= arrived <= 385, "of 400 both ways, a tenth is lost"
        assert 0.18 < trip_s < 0.4, "100 ms each way, give or take"
        arrived, trip_s = ask(wires, 2, 20)
        assert arrived == 20 and trip_s < 0.18, "another way is as fast as before"
        wires.cut(0, 1)
        assert ask(wires, 1, 20)[0] == 0
        wires.heal()
        assert ask(wires, 1, 100)[1] > 0.18, "what was slow before it was cut is slow again"
        wires.speed_up()
        arrived, trip_s = ask(wires, 1, 20)
        assert arrived == 20 and trip_s < 0.18
    finally:
        for echo in echoes:
            echo.kill()
            echo.communicate()


def ask(wires: SlowLinks, index: int, count: int) -> tuple[int, float]:
    command = [*wires.entering(0), sys.executable, "-c", ASK, wires.host(index), str(count)]
    arrived, trip_s = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split()
    return int(arrived), float(trip_s)
