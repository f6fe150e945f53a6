"""A clock that jumps must not make a cluster forget what it stored: a resend after the jump is still recognised."""

from __future__ import annotations

import time

import pytest
from testkit import clocks
from testkit.cluster import BreakableCluster
from testkit.machine import CannotBreak

from holdfast.client import BlockingClient
from holdfast.model.messages import NewMessage

MESSAGES = [NewMessage(value=b"%d" % number, id=f"id-{number}") for number in range(20)]
# Nodes look at their clock's file once a second.
SEEN_S = 1.5


@pytest.mark.night
@pytest.mark.root
@pytest.mark.timeout(180)
def test_resend_is_recognised_though_all_clocks_have_jumped_by_hours() -> None:
    if (reason := clocks.why_not()) is not None:
        pytest.skip(reason)
    try:
        cluster = BreakableCluster(3, has_clocks=True)
    except CannotBreak as error:
        pytest.skip(str(error))
    with cluster, cluster.connect_blocking() as broker:
        broker.create_topic("orders", partitions=1)
        assert sent(broker) == [(number, False) for number in range(20)]
        time.sleep(SEEN_S)  # those who follow have read it
        for clock in cluster.clocks:
            clock.set(7200)
        time.sleep(SEEN_S)
        assert sent(broker) == [(number, True) for number in range(20)], "the leader has forgotten"
        cluster.kill(cluster.leader("orders"))
        assert sent(broker) == [(number, True) for number in range(20)], "who followed it has forgotten"
        for clock in cluster.clocks:
            clock.set(-7200)
        time.sleep(SEEN_S)
        assert sent(broker) == [(number, True) for number in range(20)]


def sent(broker: BlockingClient) -> list[tuple[int, bool]]:
    return [(result.offset, result.duplicate) for result in broker.publish_many("orders", MESSAGES)]
