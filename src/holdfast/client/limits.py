"""Every bound of the client, with its reason."""

from __future__ import annotations

from typing import Final

from holdfast.model.limits import KIB, MIB

# Requests under way at once; publishing to many partitions gains nothing from more on one broker.
CALL_CONNECTIONS_MAX: Final = 8
# Long polls under way at once for one subscription; with more partitions the client looks who has news.
POLL_CONNECTIONS_MAX: Final = 32
# Servers close idle connections, often after 5 s: a connection that old is not trusted with a request
# that may not be sent twice.
IDLE_CONNECTION_S_MAX: Final = 4.0
CONNECT_TIMEOUT_S: Final = 5.0
# One try of a request that may be sent again; long enough for a busy disk, short enough to try another address.
ATTEMPT_TIMEOUT_S: Final = 10.0
# The largest answer: a 16 MiB batch or a long listing, with room to spare.
RESPONSE_BYTES_MAX: Final = 64 * MIB
SOCKET_READ_BYTES: Final = 256 * KIB

# What a broker or a proxy in front of it says when a later try, or one at another address, may work.
RETRIED_STATUSES: Final = frozenset((502, 503, 504, 507))

PAUSE_S_MIN: Final = 0.02
# A broker that restarts is found again within this time.
PAUSE_S_MAX: Final = 1.0

# A batch is held in memory whole on both sides, and one that fails is sent again whole.
BATCH_BYTES_MAX: Final = 4 * MIB
BATCH_MESSAGES_MAX: Final = 50_000
# Batches of one `publish_many` that wait or are under way for one partition: one to send, one behind it.
BULK_WINDOW: Final = 2
# Partitions that one `publish_many` of plain values writes to at the same time.
BULK_STREAMS: Final = 4

# What one long poll waits for the first message.
POLL_WAIT_S: Final = 10.0
# What a busy broker may take on top of that before the connection counts as dead.
POLL_GRACE_S: Final = 5.0
READ_BYTES_MIN: Final = 64 * KIB
READ_BYTES_MAX: Final = 1 * MIB
BUFFER_BYTES_DEFAULT: Final = 8 * MIB
BUFFER_MESSAGES_DEFAULT: Final = 100_000
# How often a subscription with more partitions than connections looks which of them have news.
SCOUT_INTERVAL_S: Final = 0.25

# Acknowledgements nobody waits for are gathered this long before they are sent.
ACK_GATHER_S: Final = 0.05
# Acknowledged ranges behind an unacknowledged message that are remembered for one partition.
ACK_RANGES_MAX: Final = 100_000
