"""What can go wrong, with a stable code for each case.

Every error is one of the three in `outcomes.py`: `Refused`, `NotStored` or `OutcomeUnknown`. Bugs of our own are plain
assertions. Codes are part of the interface: they may be added, never changed, and each belongs to one of the three.
"""

from __future__ import annotations

from holdfast.model.outcomes import OUTCOMES as OUTCOMES
from holdfast.model.outcomes import HoldfastError as HoldfastError
from holdfast.model.outcomes import NotStored as NotStored
from holdfast.model.outcomes import OutcomeUnknown as OutcomeUnknown
from holdfast.model.outcomes import Refused as Refused
from holdfast.model.outcomes import RemoteError as RemoteError
from holdfast.model.outcomes import RemoteOutcomeUnknown as RemoteOutcomeUnknown
from holdfast.model.outcomes import WorldError as WorldError
from holdfast.model.outcomes import codes_of as codes_of


class CallerError(Refused):
    """The caller's fault: a clear message, nothing changed."""


class BadCommand(CallerError):
    code = "bad_command"


class BadTopicName(CallerError):
    code = "bad_topic"


class BadCursorName(CallerError):
    code = "bad_cursor"


class BadWriter(CallerError):
    code = "bad_writer"


class BadReceipt(CallerError):
    """A receipt that no stage of this writer and number has answered with."""

    code = "bad_receipt"


class BadMessageId(CallerError):
    code = "bad_id"


class BadMessage(CallerError):
    code = "bad_message"


class BadBatch(CallerError):
    code = "bad_batch"


class BadPeerFrame(CallerError):
    """Bytes from another node that no node sends."""

    code = "bad_peer_frame"


class BadValue(CallerError):
    """A field or parameter has the wrong type or is out of range."""

    code = "bad_value"


class BadJson(CallerError):
    code = "bad_json"


class TooLarge(CallerError):
    code = "too_large"
    http_status = 413


class LineTooLong(TooLarge):
    code = "line_too_long"


class HalfLineTimeout(CallerError):
    code = "half_line_timeout"


class TooManyConnections(CallerError):
    code = "too_many_connections"
    http_status = 429


class TooManySubscriptions(CallerError):
    code = "too_many_subscriptions"
    http_status = 429


class CallbackRefused(CallerError):
    """This broker may not connect to that address: `callback_networks` and `callback_port_min` say where it may."""

    code = "callback_refused"
    http_status = 403


class TooManyTopics(CallerError):
    code = "too_many_topics"
    http_status = 429


class TooManyWriters(CallerError):
    code = "too_many_writers"
    http_status = 429


class StagedExpired(CallerError):
    """What a receipt stands for was staged too long ago, was dropped or is not there: nothing was committed."""

    code = "staged_expired"
    http_status = 409


class TransactionCommitted(CallerError):
    """Something is staged for a number that its writer has committed already, or passed: it is not taken."""

    code = "transaction_committed"
    http_status = 409


class NotFound(CallerError):
    code = "not_found"
    http_status = 404


class TopicNotFound(NotFound):
    code = "topic_not_found"


class PartitionNotFound(NotFound):
    code = "partition_not_found"


class WriterNotFound(NotFound):
    code = "writer_not_found"


class CursorNotFound(NotFound):
    code = "cursor_not_found"


class QueueNotFound(NotFound):
    code = "queue_not_found"


class NotAQueue(CallerError):
    """A topic with the name of a queue that somebody made with several partitions."""

    code = "not_a_queue"
    http_status = 409


class RequestOutdated(CallerError):
    """Its sender has sent a later one since: nobody waits for this answer."""

    code = "request_outdated"
    http_status = 409


class ReplacedByConsensus(CallerError):
    """A call with which brokers of an older kind replicate; here the consensus does."""

    code = "replaced_by_consensus"
    http_status = 409


class SubscriptionNotFound(NotFound):
    code = "subscription_not_found"


class NotSubscribed(CallerError):
    code = "not_subscribed"


class TakenOver(CallerError):
    """Another connection took this durable subscription: the newest one has it."""

    code = "taken_over"
    http_status = 409


class CursorMoved(CallerError):
    """Somebody else moved a cursor first: what was read from its old place is theirs."""

    code = "cursor_moved"
    http_status = 409


class TopicExists(CallerError):
    code = "topic_exists"
    http_status = 409


class NotBackup(CallerError):
    """A packet for a backup reached a broker that is none. Nothing was changed."""

    code = "not_backup"
    http_status = 409


class Replaced(NotBackup):
    """A packet for a backup reached one that has taken over: whoever sent it is the primary no longer."""

    code = "replaced"


class NotReplicable(CallerError):
    """A plain pair cannot keep this: its packets have no place for it. Nothing was changed."""

    code = "not_replicable"


class OffsetOutOfRange(CallerError):
    code = "offset_out_of_range"
    http_status = 416


class ConfigError(CallerError):
    code = "bad_config"


class NameTaken(ConfigError):
    """The partner goes by this node's name, and was there first. The directory has the other name from now on."""

    code = "name_taken"


class Unavailable(NotStored):
    """The backend cannot take this now: spill it, refuse it or try again."""


class ShuttingDown(Unavailable):
    """The broker is stopping and did not take this. What it took and cannot answer any more is `LeaderChanged`."""

    code = "shutting_down"


class DiskFull(Unavailable):
    """There is no room. What was written in part is removed again, or it is another error."""

    code = "disk_full"
    http_status = 507


class StorageFailed(OutcomeUnknown):
    """A write or a sync failed: what reached the disk is unknown, so nothing is acknowledged until a restart."""

    code = "storage_failed"


class NotLeader(Unavailable):
    """Another node leads this partition, or nobody does yet. Nothing was stored."""

    code = "not_leader"


class NoQuorum(Unavailable):
    """Too few nodes can talk to each other to decide anything. Nothing was stored."""

    code = "no_quorum"


class NoGroupAnswers(Unavailable):
    """Of the brokers behind a proxy, none that could have answered did."""

    code = "no_group_answers"


class LeaderChanged(OutcomeUnknown):
    """The node or the database that had this was lost before it could answer."""

    code = "leader_changed"

    def __init__(self, message: str, mark: str | None = None) -> None:
        super().__init__(message)
        # Names what may have stored it, where the store can tell later whether it did.
        self.mark = mark


class CommitPending(OutcomeUnknown):
    """The commit is decided and will be visible; that it is so far could not be seen in time. Commit again, or ask."""

    code = "commit_pending"


class StagingFull(NotStored):
    """So much is staged that no more is taken until some of it is committed, dropped or expired."""

    code = "staging_full"


class DamagedData(NotStored):
    """Stored bytes fail their checksum. They are reported and never served; go on at `next_offset`."""

    code = "damaged_data"
    http_status = 500

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.next_offset)


class ReadFailed(NotStored):
    """The disk did not give what was stored; it may be there all the same."""

    code = "read_failed"


class DataDirectoryError(NotStored):
    """The data directory cannot be used: locked, not ours, another version, no permission."""

    code = "data_directory"


class BackupDamaged(NotStored):
    """A file of a backup is missing, or not as it was written."""

    code = "backup_damaged"


class BackupUnusable(CallerError):
    """A directory that is no backup, or none for this purpose; nothing was changed."""

    code = "backup_unusable"


class BuildTooOld(DataDirectoryError):
    """The cluster uses what this build does not understand; it takes no part."""

    code = "build_too_old"


class ClusterLevelTooLow(NotStored):
    """Some node runs a build that would not understand this; nothing was changed."""

    code = "cluster_level_too_low"
    http_status = 409


class ConnectionLost(OutcomeUnknown):
    """The client lost the broker and could not reach it again in time. What it sent may have arrived."""

    code = "connection_lost"


class BadHttp(CallerError):
    """The bytes are no HTTP request, or none that this server understands."""

    code = "bad_http"


class CrossOrigin(CallerError):
    """A web page of another site tries to use a broker that its visitor can reach."""

    code = "cross_origin"
    http_status = 403


class MethodNotAllowed(CallerError):
    code = "method_not_allowed"
    http_status = 405

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeout(CallerError):
    """The rest of a request that had begun did not come."""

    code = "request_timeout"
    http_status = 408


class UnsupportedMediaType(CallerError):
    code = "unsupported_media_type"
    http_status = 415


class HeadersTooLarge(CallerError):
    code = "headers_too_large"
    http_status = 431


class NotSupported(CallerError):
    """Part of an interface that others have and this broker does not, or not yet."""

    code = "not_supported"
    http_status = 501


class Overloaded(NotStored):
    """Requests being received, or answers that nobody takes, hold all the memory they may; nothing was done."""

    code = "overloaded"


class Internal(OutcomeUnknown):
    """A bug of ours: what happened stands in the broker's log, never in the answer."""

    code = "internal"
    http_status = 500
