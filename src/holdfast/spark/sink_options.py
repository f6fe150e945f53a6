"""The options of the sink, and the columns that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType

from holdfast.spark.errors import BadOption, BadSchema, with_code
from holdfast.spark.options import BROKER_TIMEOUT_S_DEFAULT, known_options, parse_duration_s, parse_servers

SINK_NAMES: Final = ("servers", "topic", "writer", "writerBatch", "brokerTimeout")
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
# Between a pipeline and the sink: which topic its dead letters have, and how many of a batch there may be.
DEAD_TOPIC: Final = "deadTopic"
DEAD_MAX: Final = "deadMax"
_DEAD_MAX: Final = re.compile(r"(?:[0-9]{1,12}|[0-9]{1,3}(?:\.[0-9]{1,6})?%)")
# Of a share, in a batch of any size: one message among three is no reason to stop.
_DEAD_ALWAYS: Final = 10
_WRITER = re.compile(r"[A-Za-z0-9._-]{1,180}")
_TEXT: Final = (BinaryType, StringType)
SINK_COLUMNS: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "id": (StringType,),
    "topic": (StringType,),
    "partition": (IntegerType, LongType),
    "headers": (ArrayType,),
}


class DeadMax(NamedTuple):
    """How many dead letters a batch may have: so many, or so many of a hundred messages and a few in any case."""

    topic: str
    text: str

    def allows(self, dead: int, messages: int | None) -> bool:
        """`messages` are those that the batch was made of; where that is not known, a share allows only the few."""
        if not self.text.endswith("%"):
            return dead <= int(self.text)
        return dead <= _DEAD_ALWAYS or (messages is not None and dead * 100 <= float(self.text[:-1]) * messages)


def is_dead_max(text: str) -> bool:
    return _DEAD_MAX.fullmatch(text) is not None and not (text.endswith("%") and float(text[:-1]) > 100)


class SinkOptions(NamedTuple):
    """What a query asks for; of plain values, as it travels to the executors."""

    servers: tuple[tuple[str, int], ...]
    topic: str | None
    writer: str | None
    broker_timeout_s: float
    # Of a job: the number of what it brings, under the name of its writer.
    writer_batch: int | None = None
    # Where the query keeps how far it is: what a batch was made of is read there.
    checkpoint: str | None = None
    is_stream: bool = False
    dead_max: DeadMax | None = None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check everything that can be checked without a broker. Names are taken in any case, as Spark does."""
    options = known_options(given, SINK_NAMES, sparks_own=(*_SPARKS_OWN, DEAD_TOPIC, DEAD_MAX))
    writer = options.get("writer")
    if writer is not None and not _WRITER.fullmatch(writer):
        raise with_code(BadOption, "writer has 1 to 180 letters, digits, '.', '_' and '-'")
    batch = options.get("writerBatch")
    if batch is not None and (writer is None or not re.fullmatch("[0-9]{1,18}", batch)):
        raise with_code(BadOption, "writerBatch is a whole number from 0 on, and goes with the option writer")
    limit = options.get(DEAD_MAX)
    if limit is not None and (not is_dead_max(limit) or DEAD_TOPIC not in options):
        raise with_code(BadOption, f"{DEAD_MAX} is a number or a share such as 5%, and goes with {DEAD_TOPIC}")
    return SinkOptions(
        servers=parse_servers(options.get("servers", "")),
        topic=options.get("topic") or None,
        writer=writer,
        broker_timeout_s=parse_duration_s(options, "brokerTimeout", BROKER_TIMEOUT_S_DEFAULT),
        writer_batch=None if batch is None else int(batch),
        checkpoint=options.get("checkpointLocation") or None,
        dead_max=None if limit is None else DeadMax(options[DEAD_TOPIC], limit),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a query whose rows cannot be messages, before it begins."""
    strange = [name for name in schema.fieldNames() if name not in SINK_COLUMNS]
    if strange:
        raise with_code(BadSchema, _told_of(strange, schema.fieldNames()))
    names = schema.fieldNames()
    if "value" not in names:
        raise with_code(BadSchema, "a message needs the column value, binary or string; to_json makes one of others")
    for field in schema.fields:
        kinds = SINK_COLUMNS[field.name]
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise with_code(
                BadSchema, f"the column {field.name} is {field.dataType.simpleString()} here and has to be {wanted}"
            )
        if isinstance(field.dataType, ArrayType):
            _check_headers(field.dataType)
    if options.topic is None and "topic" not in names:
        raise with_code(BadOption, "say where to write with the option topic, or with a column of that name")


def _told_of(strange: list[str], names: list[str]) -> str:
    """What to type. Rows of a topic bring their partition and id along, which mean nothing in another one."""
    said = f"a message has no column {', '.join(strange)}; the sink takes {', '.join(SINK_COLUMNS)}. "
    if set(strange) <= {"offset", "timestamp"} and "value" in names:
        kept = ", ".join(f'"{name}"' for name in ("key", "value", "headers") if name in names)
        return f"{said}These rows were read from a topic: write .select({kept}) in front of the sink"
    dropped = ", ".join(f'"{name}"' for name in strange)
    return f"{said}Leave them out with .drop({dropped}), or make one value of them with to_json(struct(…))"


def _check_headers(headers: ArrayType) -> None:
    """Fields are taken by their names, in any order."""
    element = headers.elementType
    kinds = {each.name: type(each.dataType) for each in element.fields} if isinstance(element, StructType) else {}
    if kinds.keys() != {"key", "value"} or kinds["key"] is not StringType or kinds["value"] not in _TEXT:
        raise with_code(
            BadSchema,
            f"the column headers is array<struct<key:string,value:binary>>, not {headers.simpleString()}",
        )
