"""Real processes, and the one that decides is killed: readers of one pointer get every message once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from testkit.wait import wait_until

from tests.http.http_cluster import Cluster, three_nodes

READERS = 8
MESSAGES = 300


class Patient:
    """Sends a request, with its id, to one node after the other until one answers."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self._nodes = cluster.nodes
        self._place = place
        self.repeated = 0

    def __call__(self, path: str, **body: Any) -> Any:
        for _ in range(400):
            node = self._nodes[self._place % len(self._nodes)]
            try:
                answer = node.call("POST", path, body)
            except OSError:
                pass  # killed; what became of it is not known
            else:
                if answer.status == 200:
                    return answer.json
                assert answer.status == 503, answer
            self._place += 1
            self.repeated += 1
            threading.Event().wait(0.02)
        raise AssertionError(f"nobody answered {path}")


def test_no_message_is_lost_or_doubled_when_the_leader_is_killed_under_readers_of_one_client(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as cluster:
        ask = Patient(cluster, 0)
        queue_id = ask("/create_queue", request_id="test:1")["queue_id"]
        answered: list[int] = []
        stored: list[int] = []
        failures: list[BaseException] = []
        is_appended = threading.Event()

        def append(place: int) -> None:
            try:
                patient = Patient(cluster, place)
                for value in range(place, MESSAGES, 2):
                    stored.append(patient("/append", queue_id=queue_id, value=value, id=f"m-{value}")["message_id"])
            except BaseException as error:  # noqa: BLE001 - said in the test's own thread
                failures.append(error)

        def read(place: int) -> None:
            try:
                patient = Patient(cluster, place)
                number = 0
                while True:
                    was_all = is_appended.is_set()
                    number += 1
                    found = patient("/read", queue_id=queue_id, client_id="shared", request_id=f"r{place}:{number}")
                    if found["message_id"] is not None:
                        answered.append(found["value"])
                    elif was_all:
                        return
            except BaseException as error:  # noqa: BLE001 - said in the test's own thread
                failures.append(error)

        appenders = [threading.Thread(target=append, args=(place,)) for place in range(2)]
        readers = [threading.Thread(target=read, args=(place,)) for place in range(READERS)]
        for thread in (*appenders, *readers):
            thread.start()
        wait_until(lambda: len(answered) > MESSAGES // 4 or bool(failures), "readers are under way")
        leader = cluster.leader()
        while leader is None:
            leader = cluster.leader()
        cluster.by_name[leader].process.kill()
        for thread in appenders:
            thread.join(60)
        is_appended.set()
        for thread in readers:
            thread.join(60)
        assert not failures
        assert not any(thread.is_alive() for thread in (*appenders, *readers))
        assert sorted(stored) == list(range(1, MESSAGES + 1))
        assert Counter(answered) == Counter(range(MESSAGES))
        # A new queue gets a number of its own, whoever leads now.
        assert ask("/create_queue", request_id="test:2")["queue_id"] == queue_id + 1
