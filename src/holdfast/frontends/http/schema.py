"""The JSON that goes over this interface, as types.

Requests refuse fields they do not know: a misspelt `retention_mss` must not be a silent default. The
OpenAPI document is written from these types, their comments and their bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from holdfast.model.callbacks import CallbackDescription, CallbackFormat
from holdfast.model.cluster import GroupDescription
from holdfast.model.spill import FileBuffer
from holdfast.model.topics import CursorDescription, TopicDescription
from holdfast.model.transactions import Contents, StageReceipt, WriterDescription

Partition = Annotated[int, Meta(ge=0)]
Place = Annotated[str | int, Meta(description="'earliest', 'latest', an offset, or how long ago: '-10m' (s, m, h, d)")]


# --- requests ---------------------------------------------------------------------------------------


class CreateTopic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic to create. Without a retention, messages are kept for ever."""

    topic: str
    partitions: int = 1
    retention_ms: int | None = None
    retention_bytes: int | None = None


class PlainMessage(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message that is nothing but text: what most publishers send, and what is decoded fastest."""

    value: str


class PublishPlain(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A request of nothing but text messages."""

    messages: list[PlainMessage]


class PublishMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message: exactly one of `value`, `json` and `base64`, and what else is known of it."""

    value: Annotated[str, Meta(description="text, stored as UTF-8")] | UnsetType = UNSET
    json: Annotated[Raw, Meta(description="any JSON, stored as compact JSON text")] | UnsetType = UNSET
    base64: Annotated[bytes, Meta(description="bytes")] | UnsetType = UNSET
    key: Annotated[str | None, Meta(description="picks the partition: equal keys, same partition")] = None
    id: Annotated[str | None, Meta(description="recognised when the message is sent again")] = None
    headers: Annotated[dict[str, str] | None, Meta(description="text to text")] = None
    partition: Annotated[int | None, Meta(description="the partition, whatever the key says")] = None


class Publish(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to store, in this order."""

    messages: list[PublishMessage]


class PushItem(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message for a queue. Equal partitions keep their order; a transaction id is taken once in each."""

    queue: str
    payload: Annotated[Raw, Meta(description="any JSON, kept as it is written")] = field(
        default_factory=lambda: Raw(b"null")
    )
    partition: Annotated[str | None, Meta(description="any text; Default where it is absent or empty")] = None
    transactionId: Annotated[str | None, Meta(description="recognised when it is pushed again; made if absent")] = None
    traceId: str | None = None
    namespace: Annotated[str | None, Meta(description="kept with the message and given back by a pop")] = None
    task: Annotated[str | None, Meta(description="kept with the message and given back by a pop")] = None


class Push(Struct, frozen=True, forbid_unknown_fields=True):
    """Items to push. `bufferMs` and `bufferMax` are understood and change nothing."""

    items: list[PushItem]
    qos: Annotated[
        Literal[0, 1] | None, Meta(description="0: with a spill, answered from memory, and may be lost; else durable")
    ] = None
    bufferMs: int | None = None
    bufferMax: int | None = None

    @property
    def may_be_lost(self) -> bool:
        return self.qos == 0


class Ack(Struct, frozen=True, forbid_unknown_fields=True):
    """By partition, the offset below which everything is done."""

    offsets: dict[Partition, Partition]


class Seek(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a cursor shall stand; without a partition, in every one."""

    to: Place
    partition: Partition | None = None


class Subscribe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic, and the address that it is delivered to."""

    topic: str
    callback: Annotated[str, Meta(description="HOST:PORT where the receiver listens")]
    name: Annotated[str | None, Meta(description="of its cursor; absent: made of the address")] = None
    start: Annotated[Place, Meta(description="where a new name begins")] = field(default="latest", name="from")
    format: Annotated[
        CallbackFormat, Meta(description="`numbered`: each line says where it stands, so that none is seen twice")
    ] = "plain"


class Commit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction: what these receipts stand for, in this order."""

    number: Annotated[int, Meta(description="above the writer's last number")]
    receipts: Annotated[list[str], Meta(description="what stages of this writer and number answered with")]
    contents: Annotated[
        Contents | None,
        Meta(description="what it holds, as its writer counts it; kept with the number, and not interpreted"),
    ] = None


class Abort(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the writer has staged and not committed is dropped."""

    reason: Annotated[str, Meta(description="stands in the broker's log")] = ""


class Transfer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who shall lead a partition; without topic and partition, the control group."""

    to: Annotated[str, Meta(description="the node's name")]
    topic: str | None = None
    partition: Partition | None = None


class MemberChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall become of the node in the path."""

    change: Literal["remove", "keep", "drain", "undrain", "replace"]
    by: Annotated[str | None, Meta(description="with replace: a node that has joined, or is joining")] = None


# --- answers ----------------------------------------------------------------------------------------


class Topics(Struct, frozen=True):
    topics: list[TopicDescription]


class Subscriptions(Struct, frozen=True):
    subscriptions: list[CallbackDescription]


class PublishResult(Struct, frozen=True, kw_only=True):
    """Where a message stands; `duplicate` means that it stood there before."""

    partition: int
    offset: Annotated[int, Meta(description="-1 while it waits for its place")]
    duplicate: bool
    buffered: (
        Annotated[bool, Meta(description="true: it is kept by this broker, and gets its offset when the store is back")]
        | UnsetType
    ) = UNSET


class PublishResults(Struct, frozen=True):
    """One result a message, in the order of the request."""

    results: list[PublishResult]


class BatchResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a batch stands; `duplicates` of its `count` messages stood there before.

    Without duplicates the messages stand one behind the other; with some, `offsets` says where each stands.
    """

    partition: int
    base_offset: int
    count: int
    duplicates: int
    offsets: list[int] | None = None
    buffered: Annotated[
        bool, Meta(description="they are kept by this broker, and get their offsets when the store is back")
    ] = False


class BatchResults(Struct, frozen=True):
    """One result a batch, in the order of the request."""

    results: list[BatchResult]


class Message(Struct, frozen=True, kw_only=True):
    """A stored message. Bytes that are not UTF-8 come in the fields that end in base64."""

    partition: int | UnsetType = UNSET
    offset: int
    timestamp: Annotated[int, Meta(description="milliseconds since 1970 (UTC)")]
    id: Annotated[str, Meta(description="the publisher's, or partition-offset where it gave none")]
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    value: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    headers: dict[str, str]
    headers_base64: dict[str, bytes] | UnsetType = UNSET


StaleMs = Annotated[
    int, Meta(description="with `stale`: how many milliseconds ago this node last knew that nothing was missing")
]


class Messages(Struct, frozen=True):
    """Messages, and the offset to ask for next."""

    messages: list[Message]
    next_offset: int
    stale_ms: StaleMs | UnsetType = UNSET


class CursorMessages(Struct, frozen=True):
    """Messages of all partitions, and what to acknowledge them with."""

    messages: list[Message]
    ack: Annotated[dict[str, int], Meta(description="by partition; send it to …/ack as `offsets`")]


class OffsetAnswer(Struct, frozen=True):
    offset: int
    stale_ms: StaleMs | UnsetType = UNSET


class Cursors(Struct, frozen=True):
    cursors: list[CursorDescription]


class Groups(Struct, frozen=True):
    """Groups as the node that was asked sees them."""

    groups: list[GroupDescription]


class Transferred(Struct, frozen=True, kw_only=True):
    """Who leads now; without topic and partition, the control group."""

    topic: str | None
    partition: int | None
    leader: str


class Health(Struct, frozen=True):
    """`file_buffer` is there where messages are kept while the store is away."""

    status: str
    database: Annotated[str, Meta(description="`connected` or `disconnected`: whether the store takes messages now")]
    file_buffer: FileBuffer | UnsetType = UNSET


class Ready(Struct, frozen=True):
    """Whether publishes are taken, and if not, why."""

    ready: bool
    reason: str | None = None


class Info(Struct, frozen=True, kw_only=True):
    """Who answers here."""

    version: str
    node: str
    cluster: Annotated[str, Meta(description="the cluster this node belongs to; equal on all its nodes")]
    addresses: Annotated[dict[str, str], Meta(description="front end to host:port")]
    started_ms: int
    uptime_ms: int
    auto_create: Annotated[bool, Meta(description="whether a topic is created when it is first used")]


class MetricSample(Struct, frozen=True):
    labels: dict[str, str]
    value: float


class MetricFamily(Struct, frozen=True):
    """One metric with all its label combinations."""

    name: str
    type: str
    help: str
    samples: list[MetricSample]


class Metrics(Struct, frozen=True):
    file_buffer: FileBuffer
    metrics: list[MetricFamily]


class ErrorDescription(Struct, frozen=True, kw_only=True):
    """`code` never changes its meaning; `message` is for people."""

    code: str
    message: str
    next_offset: Annotated[int, Meta(description="with damaged_data: where reading can go on")] | UnsetType = UNSET


class PushResult(Struct, frozen=True):
    """What became of an item; `error` where it failed."""

    index: int
    transaction_id: str
    message_id: str
    status: Annotated[str, Meta(description="`queued`, `duplicate`, `buffered` or `failed`")]
    error: ErrorDescription | UnsetType = UNSET


class PopMessage(Struct, frozen=True, kw_only=True):
    """A message that was popped."""

    id: str
    transactionId: Annotated[str, Meta(description="as it was pushed; the id of what was published in other ways")]
    partition: Annotated[
        str, Meta(description="as it was pushed; the key, or Default, of what was published otherwise")
    ]
    data: Annotated[Any, Meta(description="the payload; text that is no JSON comes as a string")]
    encoding: (
        Annotated[str, Meta(description="`base64` where `data` stands for bytes that are no text")] | UnsetType
    ) = UNSET
    createdAt: str
    traceId: str | None
    namespace: Annotated[str, Meta(description="as it was pushed; absent where there was none")] | UnsetType = UNSET
    task: Annotated[str, Meta(description="as it was pushed; absent where there was none")] | UnsetType = UNSET


class Pop(Struct, frozen=True, kw_only=True):
    """Messages that are done with for this group. `partition` is theirs, where all have the same."""

    success: bool
    queue: str
    partition: str | None
    messages: list[PopMessage]


class Error(Struct, frozen=True):
    error: ErrorDescription


class StageReceipts(Struct, frozen=True):
    """What to name in a commit."""

    receipts: list[StageReceipt]


class Writers(Struct, frozen=True):
    """Every writer of transactions."""

    writers: list[WriterDescription]
    under_way: Annotated[int, Meta(description="commits that are decided and not visible in full yet")] = 0
