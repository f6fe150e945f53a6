"""Packets of replication survive the way to a partner and back, and what does not fit is refused before it leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consensus.plain_standing import Reign, Role, Standing
from holdfast.model.errors import BadCommand, NotReplicable
from holdfast.wire.replication import (
    NUMBER_MAX,
    Clear,
    MarkDelivered,
    Replicate,
    bare_replicate_line,
    check_fits,
    clear_line,
    confirmation,
    confirmed_number,
    mark_line,
    parse_packet,
    parse_standing,
    replicate_line,
    standing_line,
)

ids = st.text(min_size=1, max_size=20).filter(lambda text: _fits(text, b"") and text.isprintable())
values = st.binary(max_size=50).filter(lambda value: _fits(None, value))
numbers = st.integers(0, NUMBER_MAX)
names = st.text(alphabet="0123456789abcdef", max_size=16)


def _fits(message_id: str | None, value: bytes) -> bool:
    try:
        check_fits(message_id, value)
    except NotReplicable:
        return False
    return True


@given(ids, numbers, values)
def test_what_fits_arrives_as_it_was(message_id: str, number: int, value: bytes) -> None:
    line = replicate_line(message_id, number, "t", value)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert parse_packet(line[:-1], is_bare=False) == Replicate(message_id, number, "t", value)
    assert parse_packet(mark_line(message_id, number)[:-1], is_bare=False) == MarkDelivered(message_id, number)
    assert confirmed_number(confirmation(number)[:-1]) == number


@given(values)
def test_bare_packets_have_neither_id_nor_number_whatever_is_in_them(value: bytes) -> None:
    assert parse_packet(bare_replicate_line("t", value)[:-1], is_bare=True) == Replicate(None, None, "t", value)
    assert parse_packet(clear_line("t", value)[:-1], is_bare=True) == Clear("t", value)


@pytest.mark.parametrize(
    "line", [b"REPLICATE|x|notanumber|t|p", b"REPLICATE|t|a|b|c", b"REPLICATE|x|-1|t|p", b"replicate|t|x"]
)
def test_a_number_that_is_none_does_not_make_a_topic_of_an_id(line: bytes) -> None:
    with pytest.raises(BadCommand):
        parse_packet(line, is_bare=False)


@given(
    st.builds(
        Standing,
        role=st.sampled_from(Role),
        token=names,
        reign=st.builds(Reign, numbers, names),
        previous=st.builds(Reign, numbers, names),
        base=numbers,
        start=numbers,
        end=numbers,
        mark=numbers,
    )
)
def test_a_standing_is_understood_as_it_was_said(standing: Standing) -> None:
    assert parse_standing(standing_line(standing)[:-1]) == standing


@pytest.mark.parametrize(
    "line",
    [
        b"REPLICATE|id|4611686018427387905|t|x",
        b"REPLICATE|\xff|1|t|x",
        b"REPLICATE||1|t|x",
        b"REPLICATE|t",
        b"MARK_DELIVERED|id|-1",
        b"MARK_DELIVERED||1",
        b"CLEAR|t",
        b"ROLE|",
        b"ROLE|primary|t|1|t|0||0|0|0",
        b"ROLE|primary|t|x|t|0||0|0|0|0",
        b"ROLE|primary|" + b"t" * 65 + b"|1|t|0||0|0|0|0",
    ],
)
def test_what_is_no_packet_is_refused(line: bytes) -> None:
    with pytest.raises(BadCommand):
        parse_packet(line, is_bare=False)


@given(st.binary(max_size=80))
def test_no_line_breaks_the_parser(line: bytes) -> None:
    for command in (b"REPLICATE|", b"MARK_DELIVERED|", b"CLEAR|", b"ROLE|"):
        for is_bare in (True, False):
            try:
                parse_packet(command + line, is_bare=is_bare)
            except BadCommand:
                continue


@pytest.mark.parametrize(("message_id", "value"), [("a|b", b""), ("a\nb", b""), (None, b"a\nb"), (None, b"a\r")])
def test_what_cannot_be_a_line_is_refused(message_id: str | None, value: bytes) -> None:
    with pytest.raises(NotReplicable):
        check_fits(message_id, value)
