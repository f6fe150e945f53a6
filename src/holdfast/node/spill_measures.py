"""What a broker measures of what it keeps while its store is away."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backends.spill.backend import SpillBackend
from holdfast.model.metrics import Metric, metric


def measured(spill: SpillBackend) -> Iterator[Metric]:
    stats, room = spill.stats, spill.room
    yield metric(
        "gauge", "spill_active", "1 while messages are kept because the store is away.", int(not spill.is_healthy)
    )
    yield metric("gauge", "spill_pending_messages", "Messages that wait to be stored.", spill.pending)
    yield metric("gauge", "spill_files", "Completed files that wait to be stored.", spill.replayer.file_count)
    yield metric("gauge", "spill_replaying", "1 while a file is being stored.", int(spill.replayer.is_replaying))
    yield metric("counter", "spill_messages_total", "Messages that were kept.", stats.spilled_events)
    yield metric("counter", "spill_bytes_total", "Bytes that were written for them.", stats.spilled_bytes)
    yield metric(
        "counter", "spill_replayed_messages_total", "Messages stored after they were kept.", stats.replayed_events
    )
    yield metric(
        "counter",
        "spill_already_stored_total",
        "Kept messages that the store had all the same.",
        stats.already_stored_events,
    )
    yield metric("gauge", "spill_failed_messages", "Lines that could not be stored, in failed/.", stats.failed_events)
    yield metric("counter", "spill_refused_total", "Pushes that could not be kept either.", stats.refused_pushes)
    yield metric(
        "counter", "spill_outages_total", "How often the store was found unable to take a push.", stats.outages
    )
    yield metric(
        "counter", "spill_unknown_fates_total", "Pushes under way whose fate was found out later.", stats.unknown_fates
    )
    yield metric(
        "counter", "spill_qos0_lost_messages_total", "Messages with qos 0 that were lost.", stats.qos0_lost_events
    )
    yield metric("gauge", "spill_deadline_seconds", "How long a push may take just now.", spill.deadline.seconds)
    yield metric("gauge", "spill_free_bytes", "Room on the disk of the spill.", room.free_bytes)
    yield metric("gauge", "spill_room_scarce", "1 while that room is nearly used up.", int(room.is_scarce))
