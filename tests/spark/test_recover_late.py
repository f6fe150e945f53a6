"""A task of a recovery that comes back when the recovery is over."""

from __future__ import annotations

import contextlib
import time
from uuid import uuid4

import pytest

import holdfast
from holdfast.backends.spill import events
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.pipelines import recover_brokers
from holdfast.recovery.steps import Stream
from holdfast.wire import batch_builder


@pytest.mark.parametrize("is_staged", [False, True])
def test_task_that_was_frozen_for_an_hour_stores_no_message_again(
    is_staged: bool, broker: holdfast.BlockingClient, servers: str, topic: str
) -> None:
    """It had asked whether its recovery goes on. Meanwhile another run has stored all, and nobody knows the writers."""
    broker.create_topic(topic)
    stream = Stream(uuid4(), topic, 0)
    line, _ = events.lines_of(PartitionId(TopicName(topic), 0), batch_builder.build_values([b"once"], 5), 5)
    [step] = [event for event in events.events_of(line)[0] if event is not None]
    ledger = recover_brokers.BrokersLedger(servers, now_s=lambda: time.time() + 2 * 3600)

    def meanwhile() -> None:
        with contextlib.closing(recover_brokers.BrokersStore(servers)) as other:
            assert other.store(stream, 0, 1, [step]) == 1
        ledger.end(stream.recovery, [])
        ledger.forget(stream.recovery)
        assert not [each for each in broker.writers() if stream.recovery.hex in each.writer]

    class Freezing(events.Event):
        """Its message is made between the questions and the staging."""

        def message(self) -> NewMessage:
            meanwhile()
            return step.message()

    class FreezingStore(recover_brokers.BrokersStore):
        """Frozen between the last question and the commit."""

        def _check_goes_on(self, stream: Stream) -> None:
            super()._check_goes_on(stream)
            asked.append(stream)
            if len(asked) == 2:
                meanwhile()

    asked: list[Stream] = []
    frozen = Freezing(queue=topic, partition="Default", number=0, time=5, at=5)
    with contextlib.closing(ledger):
        ledger.begin(stream.recovery)
        late = FreezingStore(servers) if is_staged else recover_brokers.BrokersStore(servers)
        with (
            contextlib.closing(late),
            pytest.raises(HoldfastError, match="over" if not is_staged else "expired|staged"),
        ):
            late.store(stream, 0, 1, [step if is_staged else frozen])
    assert [message.value for message in broker.read(topic)] == [b"once"]
