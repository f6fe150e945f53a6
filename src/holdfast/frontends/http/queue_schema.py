"""The JSON of numbered queues, as types: the fields are those that their clients know."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from holdfast.broker.queue_names import QUEUE_ID_MAX

QueueId = Annotated[int, Meta(ge=1, le=QUEUE_ID_MAX)]
MessageId = Annotated[int, Meta(ge=0, le=QUEUE_ID_MAX)]
BrokerId = int | str
Limit = Annotated[int, Meta(ge=1, le=10_000, description="answer with so many at most, and `next`; else with all")]
RequestId = Annotated[
    str,
    Meta(
        description="a request that is sent again with its id has the same answer; the text before the last ':' says "
        "who asks, and the last request of each is remembered"
    ),
]


class CreateQueue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue to create."""

    request_id: RequestId | None = None


class CreatedQueue(Struct, frozen=True):
    queue_id: int


class Append(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A value for a queue."""

    queue_id: QueueId
    value: Annotated[Raw, Meta(description="any JSON, stored as compact JSON text")]
    id: Annotated[str | None, Meta(description="recognised when the value is appended again")] = None


class Appended(Struct, frozen=True, omit_defaults=True):
    message_id: Annotated[int | None, Meta(description="1 is the first of a queue; null where it is only kept")]
    duplicate: Annotated[bool, Meta(description="it was there before this append")] = False
    buffered: Annotated[bool, Meta(description="it is kept on disk, and gets its place when the store is back")] = False


class Read(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The next message for a client."""

    queue_id: QueueId
    client_id: str
    request_id: RequestId | None = None


class QueueMessage(Struct, frozen=True):
    """A message; both `null` where there is none."""

    message_id: int | None
    value: Annotated[Raw, Meta(description="the JSON that was appended; a text where it is none (see `encoding`)")]
    encoding: (
        Annotated[str, Meta(description="where the value is not JSON: 'text', or 'base64' where it is no text either")]
        | UnsetType
    ) = UNSET


class Heartbeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a leader of an older kind says to its followers."""

    leader_id: BrokerId
    leader_url: str


class FollowerUrls(Struct, frozen=True, forbid_unknown_fields=True):
    follower_urls: list[str]


class PeerUrls(Struct, frozen=True, forbid_unknown_fields=True):
    peer_urls: list[str]


class Accepted(Struct, frozen=True):
    """It was understood, and changed nothing."""

    ok: bool
    changed: bool
    note: str


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing has to be said."""


class ApplyCreateQueue(Struct, frozen=True, forbid_unknown_fields=True):
    queue_id: QueueId


class ApplyAppend(Struct, frozen=True, forbid_unknown_fields=True):
    message_id: MessageId
    queue_id: QueueId
    value: Raw


class ApplySetPointer(Struct, frozen=True, forbid_unknown_fields=True):
    queue_id: QueueId
    client_id: str
    message_id: MessageId


class BrokerInfo(Struct, frozen=True, kw_only=True):
    """The node that answers, and the one that leads the cluster."""

    broker_id: Annotated[BrokerId, Meta(description="a number where all nodes are letters and a number of their own")]
    node: str
    is_leader: bool
    leader_id: BrokerId | None
    leader_url: str | None
    term: int
    self_url: str | None
    has_quorum: bool
    peer_urls: list[str]


class QueuesWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All queues, or some of them at a time."""

    limit: Limit | None = None
    after: QueueId | None = None


class Queues(Struct, frozen=True, omit_defaults=True):
    queue_ids: list[int]
    next: Annotated[int | None, Meta(description="with `limit`: give this as `after` for those that follow")] = None


class NextQueue(Struct, frozen=True):
    next_number: int


class MessagePlace(Struct, frozen=True, forbid_unknown_fields=True):
    queue_id: QueueId
    message_id: MessageId


class MessagesWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All messages, or some of them at a time, or those of one queue."""

    queue_id: QueueId | None = None
    limit: Limit | None = None
    after: MessagePlace | None = None


class ListedMessage(Struct, frozen=True):
    message_id: int
    queue_id: int
    value: Raw
    encoding: str | UnsetType = UNSET


class QueueMessages(Struct, frozen=True):
    messages: list[ListedMessage]
    next: Annotated[MessagePlace | None, Meta(description="with `limit`: give this as `after`")] = None


class PointerPlace(Struct, frozen=True, forbid_unknown_fields=True):
    queue_id: QueueId
    client_id: str


class PointersWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All pointers, or some of them at a time."""

    limit: Limit | None = None
    after: PointerPlace | None = None


class Pointer(Struct, frozen=True):
    """A client, and the last message that it has read; 0 is none."""

    queue_id: int
    client_id: str
    message_id: int


class Pointers(Struct, frozen=True):
    pointers: list[Pointer]
    next: Annotated[PointerPlace | None, Meta(description="with `limit`: give this as `after`")] = None
