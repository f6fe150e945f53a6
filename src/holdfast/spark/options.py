"""The options of the source, named as in Spark's Kafka connector where they mean the same, and checked at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from holdfast.spark.errors import BadOption, with_code

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# As in Spark's Kafka connector, inside of JSON.
_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1

PORT_DEFAULT: Final = 8090
BROKER_TIMEOUT_S_DEFAULT: Final = 120.0

_TIME_AGO = re.compile(r"-(\d{1,9})([smhd])")
# The longest first.
_TIME_AGO_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h)")
_DURATION_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PICKS: Final = ("subscribe", "subscribePattern", "assign")
NAMES: Final = (
    "servers",
    *_PICKS,
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    "createdMs",
    "groupId",
    "valueSchema",
    "pushFilters",
    "brokerTimeout",
)

# What people bring along from Spark's Kafka connector under another name, in lower case.
_KAFKAS_OWN: Final = {"kafka.bootstrap.servers": "servers", "kafka.group.id": "groupid"}
# In front of an address; the broker prints the second one.
_SCHEME = re.compile(r"(holdfast|http)://", re.IGNORECASE)

# A place in a log: a word or an offset.
Place = str | int


class Places(NamedTuple):
    """Where to begin or end: one place for all partitions, or one for each; a time stands apart from offsets."""

    everywhere: str | None = None
    by_partition: dict[str, dict[int, Place]] | None = None
    timestamp_ms: int | None = None
    ago_ms: int | None = None

    def at(self, topic: str, number: int, default: str) -> Place:
        """What is said of one partition, where it is no time."""
        given = (self.by_partition or {}).get(topic, {}).get(number)
        return given if given is not None else self.everywhere or default

    def is_moving(self, topic: str, number: int, default: str) -> bool:
        """Whether it is another place in that partition each time somebody asks."""
        if self.timestamp_ms is not None or self.ago_ms is not None:
            return self.ago_ms is not None
        return self.at(topic, number, default) == LATEST

    @property
    def moving_word(self) -> str:
        """The place of all partitions that have a moving one, in a broker's words."""
        if self.ago_ms is None:
            return LATEST
        unit, unit_ms = next(each for each in _TIME_AGO_MS.items() if not self.ago_ms % each[1])
        return f"-{self.ago_ms // unit_ms}{unit}"


class SourceOptions(NamedTuple):
    """What a query asks for; of plain values, as it travels to the executors."""

    servers: tuple[tuple[str, int], ...]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, list[int]] | None = None
    starting: Places = Places()
    ending: Places = Places()
    fail_on_data_loss: bool = True
    offsets_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    partitions_min: int | None = None
    include_headers: bool = False
    created_ms: dict[str, int] | None = None
    group_id: str | None = None
    value_schema: str | None = None
    push_filters: bool = False
    broker_timeout_s: float = BROKER_TIMEOUT_S_DEFAULT

    def chooses(self, topic: str) -> bool:
        """Whether that topic is read, if it is there."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or topic in (self.assigned or {})

    @property
    def url(self) -> str:
        return "holdfast://" + ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )


# Spark puts it in front of the options of a table that is being made, and passes none on when that is used.
_TABLE_PREFIX: Final = "option."
_NO_TABLE: Final = (
    "Spark does not pass a table's options on to a source that is written in Python. Read with CREATE TEMPORARY VIEW … "
    "USING holdfast OPTIONS (…), and write with df.write"
)


def known_options(
    given: Mapping[str, str], names: tuple[str, ...], *, sparks_own: tuple[str, ...] = ()
) -> dict[str, str]:
    """The options by their proper names; `sparks_own` are passed on by Spark and mean nothing here."""
    if any(name.lower().startswith(_TABLE_PREFIX) for name in given):
        raise with_code(BadOption, f"holdfast is for reading and writing, not for tables of a catalog: {_NO_TABLE}")
    if not given:
        raise with_code(BadOption, f"no option is given, not even servers. If this is a table: {_NO_TABLE}")
    by_lower_case = {name.lower(): name for name in (*names, *sparks_own)}
    options: dict[str, str] = {}
    for name, text in given.items():
        known = by_lower_case.get(name.lower())
        if known is None:
            meant = _KAFKAS_OWN.get(name.lower())
            close = [meant] if meant in by_lower_case else get_close_matches(name.lower(), by_lower_case, 1)
            hint = f"; did you mean {by_lower_case[close[0]]}?" if close else f"; there are {', '.join(names)}"
            raise with_code(BadOption, f"there is no option {name}{hint}")
        options[known] = text.strip()
    return options


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Check everything that can be checked without a broker. Names are taken in any case, as Spark does."""
    options = known_options(given, NAMES)
    picked = [name for name in _PICKS if name in options]
    if len(picked) != 1:
        raise with_code(BadOption, "say what to read with exactly one of subscribe, subscribePattern and assign")
    return SourceOptions(
        servers=parse_servers(options.get("servers", "")),
        topics=_topics(options),
        pattern=_pattern(options),
        assigned=_assigned(options),
        starting=_places(options, "startingOffsets", "startingTimestamp", EARLIEST, LATEST),
        ending=_places(options, "endingOffsets", "endingTimestamp", LATEST),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        offsets_per_trigger_max=_positive(options, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=_positive(options, "maxBytesPerTrigger"),
        partitions_min=_positive(options, "minPartitions"),
        include_headers=_flag(options, "includeHeaders", default=False),
        created_ms=_created_ms(options),
        group_id=options.get("groupId"),
        value_schema=options.get("valueSchema"),
        push_filters=_flag(options, "pushFilters", default=False),
        broker_timeout_s=parse_duration_s(options, "brokerTimeout", BROKER_TIMEOUT_S_DEFAULT),
    )


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    hint = f"give host:port of the brokers' HTTP listeners, as in 127.0.0.1:{PORT_DEFAULT}"
    if not text:
        raise with_code(BadOption, f"the option servers is missing; {hint}")
    servers = []
    for part in text.split(","):
        address = part.strip()
        if scheme := _SCHEME.match(address):
            address = address[scheme.end() :].removesuffix("/")
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^\s:/@\[\]]+))(?::(\d{1,5}))?", address)
        port = int(match[3] or PORT_DEFAULT) if match else 0
        if match is None or not 1 <= port <= 65535:
            raise with_code(BadOption, f"{part.strip()!r} in servers is no address; {hint}")
        servers.append((match[1] or match[2], port))
    return tuple(dict.fromkeys(servers))


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" not in options:
        return ()
    topics = tuple(dict.fromkeys(filter(None, (name.strip() for name in options["subscribe"].split(",")))))
    if not topics:
        raise with_code(BadOption, "subscribe names no topic")
    return topics


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise with_code(BadOption, f"subscribePattern {pattern!r} is no regular expression: {error}") from None
    return pattern


def _assigned(options: Mapping[str, str]) -> dict[str, list[int]] | None:
    if "assign" not in options:
        return None
    assigned = _json(options, "assign")
    is_right = isinstance(assigned, dict) and all(
        isinstance(numbers, list) and numbers and all(type(number) is int and number >= 0 for number in numbers)
        for numbers in assigned.values()
    )
    if not is_right or not assigned:
        raise with_code(BadOption, 'assign is JSON such as {"orders": [0, 1]}')
    return {topic: sorted(set(numbers)) for topic, numbers in assigned.items()}


def _created_ms(options: Mapping[str, str]) -> dict[str, int] | None:
    if "createdMs" not in options:
        return None
    created_ms = _json(options, "createdMs")
    if not isinstance(created_ms, dict) or not all(type(time_ms) is int for time_ms in created_ms.values()):
        raise with_code(BadOption, 'createdMs is JSON such as {"orders": 1789000000000}')
    return created_ms


def _places(options: Mapping[str, str], offsets_name: str, time_name: str, *words: str) -> Places:
    timestamp = options.get(time_name)
    if timestamp is not None:
        if offsets_name in options:
            raise with_code(BadOption, f"give {offsets_name} or {time_name}, not both")
        if timestamp.isascii() and timestamp.isdigit():
            return Places(timestamp_ms=int(timestamp))
        if match := _TIME_AGO.fullmatch(timestamp):
            return Places(ago_ms=int(match[1]) * _TIME_AGO_MS[match[2]])
        raise with_code(
            BadOption, f"{time_name} is milliseconds since 1970 or a time ago such as -10m; not {timestamp!r}"
        )
    text = options.get(offsets_name)
    if text is None:
        return Places()
    if text.lower() in words:
        return Places(everywhere=text.lower())
    example = f'{" or ".join(words)}, or JSON such as {{"orders": {{"0": 42, "1": -2}}}} (-2: earliest, -1: latest)'
    if not text.startswith("{"):
        raise with_code(BadOption, f"{offsets_name} is {example}; not {text!r}")
    by_partition: dict[str, dict[int, Place]] = {}
    parsed = _json(options, offsets_name)
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise with_code(BadOption, f"{offsets_name} is {example}")
        by_partition[topic] = {}
        for partition, offset in numbers.items():
            if not partition.isdigit() or type(offset) is not int or offset < _EARLIEST_NUMBER:
                raise with_code(BadOption, f"{offsets_name} is {example}; not {partition!r}: {offset!r}")
            word: Place = {_EARLIEST_NUMBER: EARLIEST, _LATEST_NUMBER: LATEST}.get(offset, offset)
            if isinstance(word, str) and word not in words:
                raise with_code(BadOption, f"{offsets_name} cannot be {word}")
            by_partition[topic][int(partition)] = word
    return Places(by_partition=by_partition)


def _json(options: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(options[name])
    except ValueError as error:
        raise with_code(BadOption, f"{name} is no JSON: {error}") from None


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise with_code(BadOption, f"{name} is true or false, not {text!r}")
    return text == "true"


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise with_code(BadOption, f"{name} is a positive number, not {text!r}")
    return int(text)


def parse_duration_s(options: Mapping[str, str], name: str, default_s: float) -> float:
    text = options.get(name)
    if text is None:
        return default_s
    match = _DURATION.fullmatch(text)
    if match is None:
        raise with_code(BadOption, f"{name} is a time such as 500ms, 30s or 2m, not {text!r}")
    return int(match[1]) * _DURATION_S[match[2]]
