"""Every bound in the system, with its reason. What a user may change is a setting with this default."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# A topic name becomes a directory name: 200 leaves room for suffixes below the 255 bytes of a file name.
TOPIC_NAME_BYTES_MAX: Final = 200
# Cursor names stand in text lines and URLs.
CURSOR_NAME_BYTES_MAX: Final = 200
# Ids are kept in memory for the dedupe window: 100,000 of the longest are 25 MB.
MESSAGE_ID_BYTES_MAX: Final = 250
# Of a cursor's readers so many are told apart when they ask again. Each is a row of 200 bytes on every node.
READERS_PER_CURSOR_MAX: Final = 256
# A request's id stands in such a row.
REQUEST_ID_BYTES_MAX: Final = 200
# A client of a queue has a cursor: any text, which in base64 still fits in a cursor's name.
CLIENT_ID_BYTES_MAX: Final = 128
# A partition is a directory, an open file and an entry in every listing.
PARTITIONS_PER_TOPIC_MAX: Final = 1024
TOPICS_MAX: Final = 10_000
# Each is an open file; where the system allows fewer files, fewer partitions are allowed.
PARTITIONS_MAX: Final = 100_000

# A batch is held in memory whole by whoever writes or reads it.
BATCH_BYTES_MAX: Final = 16 * MIB
# What `message_bytes_max` may be set to: a batch has room for the message and all that surrounds it.
MESSAGE_BYTES_MAX_SETTABLE: Final = BATCH_BYTES_MAX // 2
# Unless it is set, all of that. Bodies, lines and pieces have bounds of their own, over all connections.
MESSAGE_BYTES_MAX: Final = MESSAGE_BYTES_MAX_SETTABLE
HEADERS_PER_MESSAGE_MAX: Final = 64
MESSAGES_PER_BATCH_MAX: Final = 100_000
# So many are looked at, or stored, before others get their turn on the event loop: a few hundredths of a second.
MESSAGES_AT_ONCE_MAX: Final = 5_000

# What surrounds a payload in a text line: command, id, topic and separators.
TEXT_LINE_OVERHEAD_BYTES: Final = 1 * KIB
# Of a line that has not ended, so much is held for each connection; what is more shares the second.
TEXT_HALF_LINE_BYTES_FREE: Final = 16 * KIB
TEXT_HALF_LINES_BYTES_MAX: Final = 256 * MIB
# A connection that began a line and fell silent holds a buffer; a minute is enough for any network.
TEXT_HALF_LINE_TIMEOUT_S: Final = 60.0
# Unacknowledged bytes of one text connection before the broker stops reading from it.
TEXT_UNACKNOWLEDGED_BYTES_MAX: Final = 8 * MIB
TEXT_SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 1024
# Bytes of whole messages that a reader is given at once: it takes them before it is given more.
SUBSCRIBER_BUFFER_BYTES_MAX: Final = 256 * KIB
# What all readers together hold of such pieces: the more there are, the smaller the pieces.
SUBSCRIBER_PIECES_BYTES: Final = 128 * MIB
# Bytes of large messages and answers that were written to readers, and not taken, on all connections together.
OUTGOING_BYTES_MAX: Final = 192 * MIB
# A smaller piece costs more to send than it saves. A connection's buffer of as many bytes counts as empty.
SUBSCRIBER_PIECE_BYTES_MIN: Final = 8 * KIB

# Each is an open connection on every node that leads a part of its topic, and an attempt a second while it is away.
CALLBACKS_MAX: Final = 4_096
# Sent to a receiver and not acknowledged, before no more is sent. One more piece may be added to it.
CALLBACK_WINDOW_BYTES_MAX: Final = 1 * MIB
# Lines that are written at once, so that a window is not far exceeded and others get their turn.
CALLBACK_PIECE_BYTES_MAX: Final = 256 * KIB
# All windows of a node share this, 32 KiB for each of as many as there may be; as they may be exceeded by a message
# of any size, nothing is sent to anybody beyond the second.
CALLBACK_WINDOWS_BYTES: Final = 128 * MIB
CALLBACK_WINDOWS_BYTES_MAX: Final = 512 * MIB
# A node tries to connect so often, all receivers that are away taken together.
CALLBACK_ATTEMPTS_PER_S: Final = 500
# What is not acknowledged for so long is sent again, over another connection.
CALLBACK_ACK_TIMEOUT_MS: Final = 30_000
# Below are the well-known services, whose protocols a line of text might mean something in.
CALLBACK_PORT_MIN: Final = 1024

CONNECTIONS_MAX: Final = 10_000
# JSON takes ten times its size in memory while it is decoded.
HTTP_BODY_BYTES_MAX: Final = 16 * MIB
HTTP_READ_MESSAGES_DEFAULT: Final = 100
HTTP_READ_MESSAGES_MAX: Final = 10_000
HTTP_READ_BYTES_MAX: Final = 8 * MIB
LONG_POLL_MS_MAX: Final = 60_000

# Large enough to make rolling rare, small enough that recovery scans and retention stay quick.
SEGMENT_BYTES_DEFAULT: Final = 256 * MIB
# How long retention keeps a message, beyond its time, for a reader that it waits for: a week is enough to find out that
# the reader is gone, and short of what disks are planned for.
RETENTION_WAITS_MS: Final = 7 * 24 * 3600 * 1000
# A hundred years: so far back a time of any message is one.
RETENTION_WAITS_MS_MAX: Final = 100 * 365 * 24 * 3600 * 1000
# One index entry for at least this many bytes of log.
INDEX_INTERVAL_BYTES: Final = 16 * KIB

# The dedupe window of a partition: whichever bound is reached first.
DEDUPE_IDS_MAX: Final = 100_000
DEDUPE_AGE_MS_MAX: Final = 10 * 60 * 1000

# A writer's name stands in the name of the cursor that keeps its number.
WRITER_NAME_BYTES_MAX: Final = 180
# Each is a cursor, in memory on every node and kept for ever, unless somebody forgets it.
WRITERS_MAX: Final = 100_000
# Partitions of the topics behind transactions: writers of different ones do not wait for each other. Two open files
# each. Never changed: a writer's partition follows from it.
TRANSACTION_PARTITIONS: Final = 8
# A writer's number. A cursor keeps it, and databases keep cursors in 64 bits.
NUMBER_MAX: Final = 2**62
# Of a number of a Spark query that has a name of its own: the lower bits say which query, those above them which batch.
# So it has two billion batches, and two queries are taken for one once in two billion times.
QUERY_BITS: Final = 31
# A commit is one message; so many receipts are about one megabyte of it. With the longest names they are 13 MB of
# JSON, which the body of a request may have.
RECEIPTS_PER_COMMIT_MAX: Final = 20_000

# What one of a plain pair holds until it is known which of the two serves: publishes of a few seconds.
PLAIN_HELD_BYTES_MAX: Final = 64 * MIB
PLAIN_HELD_BATCHES_MAX: Final = 20_000
# One piece of staged data is one message of an internal topic, and is held whole while it is copied.
STAGED_PIECE_BYTES_MAX: Final = BATCH_BYTES_MAX - 64 * KIB
# Each batch of it is looked at alone, when it is staged and when it is copied; more of them are hardly filled.
BATCHES_PER_STAGE_MAX: Final = 4_096
# What is staged and not committed is kept so long: longer than any task is retried.
TRANSACTION_EXPIRY_MS: Final = 60 * 60 * 1000
# In each of the partitions above, before a stage is refused.
STAGED_BYTES_MAX: Final = 32 * GIB
# A commit waits so long for what it decided to be visible before it says that it is decided: less than clients wait.
COMMIT_WAIT_MS: Final = 8_000

PROCESSOR_ATTEMPTS_MAX: Final = 3
PROCESSOR_TIMEOUT_MS: Final = 30_000
# Messages of one partition that may be in the workers at once; results still leave in order.
PROCESSOR_INFLIGHT_PER_PARTITION: Final = 16

# A frame between nodes is held whole by the receiver. One message of it may carry a leader's whole window (16 MiB)
# and one more batch of the largest size; four times a batch leaves room for what surrounds them.
PEER_FRAME_BYTES_MAX: Final = 64 * MIB
# Before a peer has said who it is, nobody gets more memory than an introduction takes.
PEER_HELLO_BYTES_MAX: Final = 64 * KIB
# Bytes queued towards a peer that does not read, before messages to it are dropped. Not less than one frame, so
# that an idle link can take any message.
PEER_WRITE_BUFFER_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX
# Requests of one peer that are being answered: each is a task and its body.
PEER_REQUESTS_MAX: Final = 1024
# Connections that have not said who they are: a restarted cluster makes one for each node, the rest is noise.
PEER_STRANGERS_MAX: Final = 64
# Batches on their way to the leader of one partition, and to all leaders together. A request holds a copy of its batch.
FORWARDED_BYTES_PER_PARTITION_MAX: Final = 64 * MIB
FORWARDED_BYTES_MAX: Final = 128 * MIB
# Changes of topics, cursors and nodes that wait to be decided, about 1 KiB each: more than one for every connection.
PROPOSALS_MAX: Final = 20_000
# Nodes that may be connected: each is a socket and a buffer. Clusters are a hundred times smaller.
PEERS_MAX: Final = 1024
# Nodes of a cluster: each has every partition, and each commit waits for more than half of them.
CLUSTER_NODES_MAX: Final = 63

# A node that has not heard of a leader for so long does not answer as if it knew what is going on.
STALE_AFTER_MS: Final = 1000

# New containers before a look for garbage, and looks before one that goes further back (Python's own: 700, 10, 10).
GC_THRESHOLDS: Final = (10_000, 20, 50)
