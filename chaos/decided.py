"""What the control group has decided, as each node tells it: at the end of a run all must tell the same.

Messages are compared byte by byte elsewhere (`testkit.checker`). Commands are applied on every node by itself: one
that has applied one of them otherwise than the others shows here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from testkit.cluster import BreakableCluster

from holdfast.testing.asking import ask

# The last moves of cursors may be under way when everybody has left.
_SETTLED_S: Final = 15.0
_POLL_S: Final = 0.2


def _topics(answer: Any) -> dict[str, object]:
    return {
        each["topic"]: (each["created_ms"], [(one["partition"], one["end_offset"]) for one in each["partitions"]])
        for each in answer["topics"]
    }


def _cursors(answer: Any) -> dict[str, object]:
    return {
        f"{each['topic']}:{each['name']}": [(one["partition"], one["offset"]) for one in each["partitions"]]
        for each in answer["cursors"]
    }


def _subscriptions(answer: Any) -> dict[str, object]:
    return {
        f"{each['topic']}:{each['name']}": (each["callback"], each["format"], each["created_ms"])
        for each in answer["subscriptions"]
    }


def _members(answer: Any) -> dict[str, object]:
    fields = ("state", "is_drained", "is_joining", "is_leaving", "votes_in", "groups", "address")
    return {each["node"]: [each[field] for field in fields] for each in answer["members"]}


def _queues(answer: Any) -> dict[str, object]:
    return {"next number": answer["next_number"]}


_ASKED: Final[Mapping[str, Callable[[Any], dict[str, object]]]] = {
    "/v1/topics": _topics,
    "/v1/cursors": _cursors,
    "/v1/subscriptions": _subscriptions,
    "/v1/cluster/members": _members,
    "/v1/queues": _queues,
}


def differences(told: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What two nodes tell differently; `told` is by node, and by what it is about."""
    first, *others = sorted(told)
    found = []
    for other in others:
        for name in sorted(told[first].keys() | told[other].keys()):
            one, two = told[first].get(name), told[other].get(name)
            if one != two:
                found.append(f"{name}: {first} tells {one}, {other} tells {two}")
    return found


def disagreements(cluster: BreakableCluster) -> list[str]:
    """What nodes still tell differently once everything has settled, or that one of them tells nothing."""
    found = []
    for path, taken in _ASKED.items():
        deadline = time.monotonic() + _SETTLED_S
        while differing := _look(cluster, path, taken):
            if time.monotonic() > deadline:
                found += [f"{path}: {each}" for each in differing]
                break
            time.sleep(_POLL_S)
    return found


def _look(cluster: BreakableCluster, path: str, taken: Callable[[Any], dict[str, object]]) -> list[str]:
    told = {}
    for node in cluster.nodes:
        answer = ask(node.http, path, 10.0)
        if answer.status != 200:
            return [f"{node.id} answers {answer.status}: {answer.content}"]
        told[node.id] = taken(answer.content)
    return differences(told)
