"""Options are understood as documented, or refused with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from holdfast.model.errors import HoldfastError
from holdfast.spark.options import NAMES, Places, parse_options
from holdfast.spark.schema import COLUMNS, source_schema
from holdfast.spark.sink_options import DeadMax, check_columns, is_dead_max, parse_sink_options

NEEDED = {"servers": "127.0.0.1:8090", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("text", "dead", "messages", "is_allowed"),
    [
        ("0", 0, 5, True),
        ("0", 1, 5, False),
        ("5", 5, None, True),
        ("5", 6, None, False),
        ("5%", 10, 10, True),
        ("5%", 11, 220, True),
        ("5%", 11, 219, False),
        ("0.5%", 50, 10_000, True),
        ("0.5%", 51, 10_000, False),
        ("100%", 50, 50, True),
        ("5%", 10, None, True),
        ("5%", 11, None, False),
    ],
)
def test_so_many_dead_letters_a_batch_may_have(text: str, dead: int, messages: int | None, is_allowed: bool) -> None:
    assert is_dead_max(text) and DeadMax("orders.dead", text).allows(dead, messages) is is_allowed


def test_names_are_taken_in_any_case_and_addresses_in_every_form() -> None:
    options = parse_options(
        {
            "SERVERS": "holdfast://a:1, [::1]:2,c,http://d:3/,HTTP://e",
            "subscribe": "x, y",
            "MaxOffsetsPerTrigger": "7",
            "failondataloss": "FALSE",
        }
    )
    assert options.servers == (("a", 1), ("::1", 2), ("c", 8090), ("d", 3), ("e", 8090))
    assert options.url == "holdfast://a:1,[::1]:2,c:8090,d:3,e:8090"
    assert options.topics == ("x", "y")
    assert (options.offsets_per_trigger_max, options.fail_on_data_loss) == (7, False)


def test_places_are_words_offsets_or_times() -> None:
    def starting(**options: str) -> Places:
        return parse_options({**NEEDED, **options}).starting

    assert starting() == Places()
    assert starting(startingOffsets="Earliest").everywhere == "earliest"
    given = starting(startingOffsets='{"orders": {"0": 5, "1": -1, "2": -2}}').by_partition
    assert given == {"orders": {0: 5, 1: "latest", 2: "earliest"}}
    assert starting(startingTimestamp="1789000000000").timestamp_ms == 1789000000000
    assert starting(startingTimestamp="-2h").ago_ms == 7_200_000


@pytest.mark.parametrize(
    ("options", "moving"),
    [
        ({}, {0, 1, 2}),
        ({"startingOffsets": "latest"}, {0, 1, 2}),
        ({"startingOffsets": "earliest"}, set()),
        ({"startingTimestamp": "-10m"}, {0, 1, 2}),
        ({"startingTimestamp": "1789000000000"}, set()),
        ({"startingOffsets": '{"orders": {"0": -1, "1": 7}}'}, {0, 2}),
    ],
)
def test_places_that_are_others_each_time_are_known(options: dict[str, str], moving: set[int]) -> None:
    starting = parse_options({**NEEDED, **options}).starting
    assert {number for number in range(3) if starting.is_moving("orders", number, "latest")} == moving


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscribe": "orders"}, "servers is missing"),
        ({"servers": "127.0.0.1:8090"}, "exactly one of subscribe"),
        ({**NEEDED, "assign": "{}"}, "exactly one of subscribe"),
        ({"servers": "a b", "subscribe": "x"}, "is no address"),
        ({"servers": "a:70000", "subscribe": "x"}, "is no address"),
        ({"servers": "a", "subscribePattern": "("}, "no regular expression"),
        ({"servers": "a", "assign": '{"orders": []}'}, "assign is JSON"),
        ({"servers": "a", "assign": "{"}, "is no JSON"),
        ({"kafka.bootstrap.servers": "a", "subscribe": "x"}, "did you mean servers?"),
        ({**NEEDED, "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({**NEEDED, "startingOffsets": "now"}, "startingOffsets is earliest or latest"),
        ({**NEEDED, "startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets is"),
        ({**NEEDED, "endingOffsets": "earliest"}, "endingOffsets is latest"),
        ({**NEEDED, "endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets cannot be earliest"),
        ({**NEEDED, "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({**NEEDED, "startingTimestamp": "yesterday"}, "a time ago such as -10m"),
        ({**NEEDED, "maxOffsetsPerTrigger": "0"}, "positive number"),
        ({**NEEDED, "includeHeaders": "yes"}, "true or false"),
        ({**NEEDED, "createdMs": '{"orders": "long ago"}'}, "createdMs is JSON such as"),
        ({**NEEDED, "brokerTimeout": "soon"}, "a time such as"),
    ],
)
def test_mistakes_are_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(HoldfastError) as raised:
        parse_options(given)
    assert raised.value.code == "bad_option" and told in str(raised.value)


def test_options_of_the_sink_are_its_own() -> None:
    given = {"servers": "a", "TOPIC": " orders ", "checkpointLocation": "/somewhere", "queryname": "copy"}
    assert parse_sink_options(given)._asdict() == {
        "servers": (("a", 8090),),
        "topic": "orders",
        "writer": None,
        "broker_timeout_s": 120.0,
        "writer_batch": None,
        "checkpoint": "/somewhere",
        "is_stream": False,
        "dead_max": None,
    }
    assert parse_sink_options({**given, "writer": "w", "writerBatch": "7"}).writer_batch == 7
    with pytest.raises(HoldfastError, match="there is no option subscribe; there are servers, topic, writer, writerB"):
        parse_sink_options({"servers": "a", "subscribe": "orders"})
    with pytest.raises(HoldfastError, match=r"there is no option topik; did you mean topic\?"):
        parse_sink_options({"servers": "a", "topik": "orders"})


@pytest.mark.parametrize(
    "given",
    [
        "item STRING, count INT",
        "`a ,<b` : decimal(10, 2) NOT NULL COMMENT 'it''s, <', c array<map<string,struct<d:int,`e f`: bigint>>>",
        "x struct<>, when TIMESTAMP WITHOUT TIME ZONE, i INTERVAL DAY TO SECOND",
    ],
)
def test_schema_of_values_that_spark_reads_is_passed_on(given: str) -> None:
    assert f"struct<{given}>" in str(source_schema(given, with_headers=False))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("item", "'item' is no name with a type"),
        ("item STRING, ", "a field is empty"),
        ("item STRIN", "there is no type strin"),
        ("item STRING count INT", "'count' behind string"),
        ("item array", "array says in <"),
        ("item array<int", "a > is missing"),
        ("item array<int>>", "a > too many"),
        ("item map<int>", "map has two types"),
        ("a struct<b: array<whole>>", "there is no type whole"),
        ('{"type": "struct"}', "not the JSON of a StructType"),
        ("{", "not the JSON of a StructType"),
    ],
)
def test_schema_of_values_that_cannot_be_read_is_a_bad_option(given: str, told: str) -> None:
    with pytest.raises(HoldfastError, match=r"\[bad_option\] valueSchema") as raised:
        source_schema(given, with_headers=False)
    assert raised.value.code == "bad_option" and told in str(raised.value)


def test_rows_of_a_topic_are_refused_with_what_to_type() -> None:
    read = source_schema(None, with_headers=True)
    assert isinstance(read, StructType)
    options = parse_sink_options({"servers": "a", "topic": "copies"})
    with pytest.raises(
        HoldfastError, match=r'no column offset, timestamp;.*write \.select\("key", "value", "headers"\)'
    ):
        check_columns(read, options)
    strange = StructType().add("value", "string").add("price", "integer").add("item", "string")
    with pytest.raises(HoldfastError, match=r'\.drop\("price", "item"\), or make one value of them with to_json'):
        check_columns(strange, options)


def test_every_option_and_column_is_in_the_documentation() -> None:
    document = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in document] == []
    assert [name for name in COLUMNS if f"| `{name}` |" not in document] == []
