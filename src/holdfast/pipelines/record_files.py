"""What was sent and what was received, as DataFrames: from record files (`client/records.py` has the format) or topics.

A received line's place says where it stands among all lines of its receiver: `stretch` is the file and the part of it
that one task has read, as one number that rises with the names of files, and `place` rises within the stretch. That is
the order in which messages came, whatever any clock said. Stretches also cut long streams into pieces that are worked
on side by side.

A line that cannot be judged is counted and shown as it stands, and left out of everything else: one that is not exactly
one JSON object, has a field of another type, or lacks a field that is needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation
from pyspark.sql import functions as f

from holdfast.pipelines.errors import BadRecords, RecordsNotFound

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What a line must have, and what it may have.
SENT_NEEDED: Final = {"topic": "string", "id": "string", "sequence": "bigint", "acknowledged": "boolean"}
SENT_OPTIONAL: Final = {"time_ms": "bigint", "producer": "string", "partition": "int"}
RECEIVED_NEEDED: Final = {"topic": "string", "id": "string"}
RECEIVED_OPTIONAL: Final = {"time_ms": "bigint", "receiver": "string", "partition": "int"}
# What says where a line stands among all of its receiver; of what was sent nobody asks.
_PLACE: Final = ("given", "stretch", "place")
# A partition that nobody has told.
UNKNOWN_PARTITION: Final = -1
# Of a line that is not what it must be: that it is not, and its text.
_BROKEN: Final = "_broken"
_TEXT: Final = "_text"
# Spark takes more for JSON than JSON is.
_JSON: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
# Columns of Parquet files that are as good as those of another type. A number that is too large is malformed.
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_TAKEN: Final = {"string": ("string", "binary"), "bigint": _INTEGERS, "int": _INTEGERS, "boolean": ("boolean",)}
# Rows of a stretch where nothing else cuts them.
_STRETCH_ROWS: Final = 1 << 20
# Parts of a file that are told apart by where they begin: a tebibyte; and so there may be eight million files.
_FILE_PARTS: Final = 1 << 40
# Of the text of a malformed line, what is shown.
_SHOWN_CHARACTERS: Final = 200


class Records(NamedTuple):
    """Lines that can be judged, and the others: `file` and `line`; and how many bytes both are.

    `malformed_count` tells how many the others are, once something has read `good`.
    """

    good: DataFrame
    malformed: DataFrame
    bytes: int
    malformed_count: Callable[[], int]
    # Files of no bytes; of topics nobody knows before they are read.
    is_empty: bool = False


def sent_from_files(spark: SparkSession, places: Sequence[str]) -> Records:
    """Columns: `topic, id, sequence, acknowledged, time_ms, producer, partition`."""
    return _read(spark, places, SENT_NEEDED, SENT_OPTIONAL, (), _as_sent)


def received_from_files(spark: SparkSession, places: Sequence[str]) -> Records:
    """Columns: `topic, id, time_ms, receiver, partition, stretch, place`."""
    return _read(spark, places, RECEIVED_NEEDED, RECEIVED_OPTIONAL, _PLACE, _as_received)


def sent_records(spark: SparkSession, places: Sequence[str], servers: str, topics: Sequence[str]) -> Records:
    """Files and topics together."""
    from_files = [sent_from_files(spark, places)] if places else []
    return _together(from_files, [sent_from_topics(spark, servers, topics)] if topics else [], "sent")


def received_records(spark: SparkSession, places: Sequence[str], servers: str, topics: Sequence[str]) -> Records:
    from_files = [received_from_files(spark, places)] if places else []
    return _together(from_files, [received_from_topics(spark, servers, topics)] if topics else [], "received")


def _together(from_files: list[Records], from_topics: list[DataFrame], side: str) -> Records:
    if not from_files and not from_topics:
        raise BadRecords(f"what was {side}? Give record files with --{side}, or a topic with --{side}-topic")
    if not from_topics:
        return from_files[0]
    nothing = from_topics[0].where("false").selectExpr("'' AS file", "'' AS line")
    if not from_files:
        return Records(from_topics[0], nothing, 0, lambda: 0)
    both = from_files[0].good.unionByName(from_topics[0])
    return from_files[0]._replace(good=both, is_empty=False)


def sent_from_topics(spark: SparkSession, servers: str, topics: Sequence[str]) -> DataFrame:
    """What stands in topics, as sent and acknowledged."""
    return _topics(spark, servers, topics).select(
        "topic",
        "id",
        f.col("offset").alias("sequence"),
        f.lit(True).alias("acknowledged"),
        "time_ms",
        # Offsets are one row of numbers in each partition.
        f.lit("log").alias("producer"),
        "partition",
    )


def received_from_topics(spark: SparkSession, servers: str, topics: Sequence[str]) -> DataFrame:
    """What stands in topics, as received by a receiver named `log`, in the order of offsets."""
    return _topics(spark, servers, topics).select(
        "topic",
        "id",
        "time_ms",
        f.lit("log").alias("receiver"),
        "partition",
        f.expr(f"offset div {_STRETCH_ROWS}").alias("stretch"),
        f.col("offset").alias("place"),
    )


def _topics(spark: SparkSession, servers: str, topics: Sequence[str]) -> DataFrame:
    options = {"servers": servers, "subscribe": ",".join(topics)}
    rows = spark.read.format("holdfast").options(**options)
    read = rows.schema("topic string, partition int, offset bigint, timestamp timestamp, id string").load()
    return read.withColumn("time_ms", f.unix_millis("timestamp"))


# --- files --------------------------------------------------------------------------------------------------


def _read(
    spark: SparkSession,
    places: Sequence[str],
    needed: dict[str, str],
    optional: dict[str, str],
    kept: Sequence[str],
    shape: Callable[[DataFrame], DataFrame],
) -> Records:
    found: list[DataFrame] = []
    size = rank = 0
    for place in places:
        rows, files = _read_place(spark, place, {**needed, **optional}, needed, rank)
        found.append(rows)
        size += sum(files.values())
        rank += len(files)
    union: DataFrame = reduce(lambda one, other: one.unionByName(other), found)
    lacks: Column = reduce(lambda one, other: one | other, (f.col(name).isNull() for name in needed))
    is_bad = f.col(_BROKEN) | lacks
    # Bytes that are no UTF-8 would end Spark's way to Python.
    line = f.substring(f.make_valid_utf8(_TEXT), 1, _SHOWN_CHARACTERS).alias("line")
    counted = Observation()
    # Spark makes every column that goes into a count like this one, asked for or not.
    judged = union.select(*needed, *optional, _BROKEN, *kept)
    good = shape(judged.observe(counted, f.count_if(is_bad).alias("malformed")).where(~is_bad))
    malformed = union.where(is_bad).select("file", line)
    return Records(good, malformed, size, lambda: _count(malformed) if _may_be_some(counted) else 0, size == 0)


def _count(malformed: DataFrame) -> int:
    """By their text, for which every field is read: Spark does not look at fields that nobody asks for."""
    return int(malformed.agg(f.count("line")).collect()[0][0])


def _may_be_some(counted: Observation) -> bool:
    """Whether the reading saw any: then they are worth a pass that counts each once, however often a task was tried."""
    try:
        return bool(counted.get["malformed"])
    except Py4JJavaError:
        # Spark forgets what it saw in a part of a plan that turned out to give nothing.
        return True


def _as_sent(rows: DataFrame) -> DataFrame:
    return rows.select(
        "topic",
        "id",
        "sequence",
        "acknowledged",
        "time_ms",
        f.coalesce(f.col("producer"), _producer_of_id()).alias("producer"),
        f.coalesce("partition", f.lit(UNKNOWN_PARTITION)).alias("partition"),
    )


def _as_received(rows: DataFrame) -> DataFrame:
    return rows.select(
        "topic",
        "id",
        "time_ms",
        f.coalesce("receiver", "given").alias("receiver"),
        f.coalesce("partition", f.lit(UNKNOWN_PARTITION)).alias("partition"),
        "stretch",
        "place",
    )


def _producer_of_id() -> Column:
    """`p1/` of the id `p1/17` with the sequence 17: who has numbered it. Where ids tell nothing, all are of one."""
    ends_with_number = f.col("id").endswith(f.col("sequence").cast("string"))
    return f.when(ends_with_number, f.regexp_replace("id", "[0-9]+$", "")).otherwise(f.lit(""))


def _read_place(
    spark: SparkSession, place: str, columns: dict[str, str], needed: dict[str, str], rank: int
) -> tuple[DataFrame, dict[str, int]]:
    """One file, directory or pattern, and its files; `given` is its name, and `rank` how many came before."""
    files = _files(spark, place)
    if not files:
        raise RecordsNotFound(
            f"{place} leads to no file; give a file, a directory or a pattern such as 'runs/*.ndjson'"
        )
    parquet = {name.endswith(".parquet") for name in files}
    if len(parquet) > 1:
        raise BadRecords(f"{place} has Parquet files and others; name one kind, as in '{place}/*.parquet'")
    is_parquet = parquet.pop()
    rows = _read_parquet(spark, place, columns, needed) if is_parquet else _read_lines(spark, place, columns)
    ranked = _ranked(spark, rows, sorted(rows.inputFiles()), rank)
    return ranked.withColumn("given", f.lit(place)), files


def _read_lines(spark: SparkSession, place: str, columns: dict[str, str]) -> DataFrame:
    """Spark's own reader stops behind the first value of a line, and makes text of every value where text is wanted.

    So each line is read as the first of two values of an array: the second is there only where the first is all of the
    line. The name of the array and the mark of the second are random, so that no line can end the array and begin
    another one. And text is read as a variant, which knows its type.
    """
    last = secrets.token_hex(8)
    name_of_array = f"lines_{last}"
    fields = ", ".join(f"{name}: {'variant' if kind == 'string' else kind}" for name, kind in columns.items())
    schema = f"struct<{name_of_array}: array<struct<{fields}, last: string>>, {_BROKEN}: string>"
    whole = f.concat(f.lit(f'{{"{name_of_array}":['), "value", f.lit(f',{{"last":"{last}"}}]}}'))
    read = f.from_json(whole, schema, {**_JSON, "columnNameOfCorruptRecord": _BROKEN})
    line = f.get(f"read.{name_of_array}", f.lit(0))
    is_alone = f.get(f"read.{name_of_array}", f.lit(1))["last"] == last
    texts = [line[name] for name, kind in columns.items() if kind == "string"]
    are_text = [f.coalesce(f.schema_of_variant(text).isin("STRING", "VOID"), f.lit(True)) for text in texts]
    is_sound = reduce(
        lambda one, other: one & other,
        (f.col(f"read.{_BROKEN}").isNull(), f.coalesce(is_alone, f.lit(False)), f.is_valid_utf8("value"), *are_text),
    )
    return (
        spark.read.text(place)
        .where(f.col("value").rlike(r"\S"))
        .select(
            "value",
            read.alias("read"),
            f.col("_metadata.file_path").alias("file"),
            f.col("_metadata.file_block_start").alias("part"),
            # Rises in each part, since one task reads all of it.
            f.monotonically_increasing_id().alias("place"),
        )
        .select(
            *(
                (f.try_variant_get(line[name], "$", "string") if kind == "string" else line[name]).alias(name)
                for name, kind in columns.items()
            ),
            (~is_sound).alias(_BROKEN),
            f.col("value").alias(_TEXT),
            "file",
            "part",
            "place",
        )
    )


def _read_parquet(spark: SparkSession, place: str, columns: dict[str, str], needed: dict[str, str]) -> DataFrame:
    rows = spark.read.parquet(place)
    there = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if missing := [name for name in needed if name not in there]:
        raise BadRecords(f"{place} has no column {', '.join(missing)}; it has {', '.join(sorted(there))}")
    for name, kind in columns.items():
        if there.get(name, kind) not in _TAKEN[kind]:
            raise BadRecords(f"{place}: the column {name} is {there[name]}, and must be {kind}")
    chosen = {
        name: (f.col(name) if name in there else f.lit(None)).try_cast(kind).alias(name)
        for name, kind in columns.items()
    }
    is_sound: Column = reduce(
        lambda one, other: one & other,
        (
            (f.col(name).isNull() | chosen[name].isNotNull())
            & (f.coalesce(f.is_valid_utf8(chosen[name]), f.lit(True)) if kind == "string" else f.lit(True))
            for name, kind in columns.items()
            if name in there
        ),
    )
    row = f.col("_metadata.row_index")
    return rows.select(
        *chosen.values(),
        (~is_sound).alias(_BROKEN),
        f.to_json(f.struct(*(f.col(name) for name in columns if name in there))).alias(_TEXT),
        f.col("_metadata.file_path").alias("file"),
        f.expr(f"_metadata.row_index div {_STRETCH_ROWS}").alias("part"),
        row.alias("place"),
    )


def _ranked(spark: SparkSession, rows: DataFrame, files: list[str], first: int) -> DataFrame:
    """With `stretch` for file and part. A number instead of a path: every row is sorted by it and carries it along."""
    if len(files) == 1:
        return rows.withColumn("stretch", f.lit(first * _FILE_PARTS) + f.col("part"))
    # Spark writes one and the same local path in two ways.
    names = [name.replace("file:///", "file:/", 1) for name in files]
    ranks = spark.createDataFrame([(name, rank) for rank, name in enumerate(names, first)], "file string, rank bigint")
    ranked = rows.withColumn("file", f.regexp_replace("file", "^file:///", "file:/")).join(
        f.broadcast(ranks), "file", "left"
    )
    unknown = f.raise_error(f.concat(f.lit("a file came up while records were read: "), f.col("file"))).cast("bigint")
    return ranked.withColumn("stretch", f.coalesce("rank", unknown) * _FILE_PARTS + f.col("part")).drop("rank")


def _files(spark: SparkSession, place: str) -> dict[str, int]:
    """The files that a place leads to, and how large each is, on whichever file system they are."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    found = {}
    for status in system.globStatus(path) or ():
        for each in system.listStatus(status.getPath()) if status.isDirectory() else (status,):
            name = each.getPath().getName()
            if not name.startswith(("_", ".")):
                found[str(each.getPath().toString())] = int(each.getLen())
    return found
