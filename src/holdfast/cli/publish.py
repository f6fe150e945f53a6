"""`holdfast publish`: one message, the lines of an input, or a sequence at a steady rate."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output, pacing, recording, session, sources
from holdfast.cli.options import SERVER_DEFAULT, Server, Topic, examples
from holdfast.cli.pair_options import Addresses, checked_addresses, is_address
from holdfast.cli.publishing import BUFFERED, Publisher
from holdfast.cli.quantities import duration_s, plural, rate_per_s

if TYPE_CHECKING:
    from holdfast.model.messages import Published

EXAMPLES = examples(
    'holdfast publish orders "Hello"',
    "holdfast publish orders --key customer-17 --id order-17 --header source=shop '{\"total\": 12}'",
    "holdfast publish logs < app.log",
    "holdfast publish pictures --whole --file cat.jpg",
    "holdfast publish topicC --sequence --rate 10 --for 40s",
    'holdfast publish topicC "Hello" localhost:8080 localhost:8081',
    "holdfast publish topicC --rate 10 --sequence --for 40s localhost:8080 localhost:8081",
    "tail -f app.log | holdfast publish logs - localhost:8080 localhost:8081",
    "holdfast publish orders --sequence --for 40s --record sent.ndjson",
)
# The pace of the test publisher that --sequence stands for.
SEQUENCE_RATE_PER_S = 10.0
# How long a publisher of a pair waits for an acknowledgement, and how many acknowledged messages it keeps.
ACK_TIMEOUT_MS = 500
RETAIN = 5


def publish(
    context: typer.Context,
    topic: Topic,
    message: Annotated[
        str | None,
        typer.Argument(help="The message; `-` or nothing: lines of standard input. None with --sequence or --file."),
    ] = None,
    address: Addresses = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, readable=True, metavar="FILE", help="Lines of a file."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The whole input is one message.")] = False,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="Publish 1, 2, 3, …, 10 a second unless --rate says otherwise.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second; a line for each.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many messages.")] = None,
    for_: Annotated[
        float | None, typer.Option("--for", parser=duration_s, metavar="DURATION", help="Stop after this time.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The key of every message; picks the partition.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="TEXT", help="The id of one message; sent twice, it is stored once.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every message; may be given again.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="The partition, whatever the key.")] = None,
    retry_safe: Annotated[
        bool,
        typer.Option(
            "--retry-safe",
            help="Give ids to floods of lines as well: slower, but a lost connection never ends publishing half way.",
        ),
    ] = False,
    ack_timeout_ms: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With addresses: go to the other broker after so long without an answer."
        ),
    ] = None,
    retain: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="With addresses: acknowledged messages that the other broker gets again."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Append what was sent, and whether it was acknowledged."),
    ] = None,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON: a line a message with --rate, else one object.")
    ] = False,
) -> None:
    """Publish messages; done means that all of them are durable.

    With addresses, one of a plain broker or two of a pair, over the text protocol: if a broker is lost or does not
    answer, the other one gets what is not acknowledged, and publishing goes on there.

    If one is refused, publishing ends with exit code 1 and says how many messages were acknowledged before.
    """
    addresses = list(address or [])
    if (sequence or file is not None) and message is not None and is_address(message):
        addresses.insert(0, message)
        message = None
    if message is not None and len(addresses) == 1 and is_address(message) and is_address(addresses[0]):
        raise typer.BadParameter(
            f"what is to be published to {message} and {addresses[0]}? Write the message before the addresses, or - "
            "to read lines"
        )
    paced = sequence or rate is not None
    if sum((message not in (None, "-"), file is not None, sequence)) > 1:
        raise typer.BadParameter("give one of MESSAGE, --file and --sequence")
    repeats = message not in (None, "-")
    if message_id is not None and (not (repeats or whole) or count not in (None, 1) or for_ is not None or paced):
        raise typer.BadParameter("--id names one message; give that message as MESSAGE or with --whole")
    if repeats and not (paced or for_) and count is None:
        count = 1
    headers = _headers(header or [])
    if addresses:
        addresses = checked_addresses(context, addresses)
        if key is not None or headers or partition is not None:
            raise typer.BadParameter("a text line has no key, no headers and no partition; those need --server")
        session.require_text_broker(addresses)

        from holdfast.cli.pair_publishing import publish_to_pair

        with (
            _source(message, file, for_, whole=whole, sequence=sequence) as source,
            recording.sent(record, topic) as records,
        ):
            publish_to_pair(
                topic,
                addresses,
                sources.limited(source, count),
                rate=(rate or SEQUENCE_RATE_PER_S) if paced else None,
                for_s=for_,
                is_single=count == 1,
                message_id=message_id,
                ack_timeout_s=(ACK_TIMEOUT_MS if ack_timeout_ms is None else ack_timeout_ms) / 1000,
                retain=RETAIN if retain is None else retain,
                records=records,
                as_json=as_json,
            )
        return
    if ack_timeout_ms is not None or retain is not None:
        raise typer.BadParameter("--ack-timeout-ms and --retain are for a pair; give its two addresses")

    with (
        _source(message, file, for_, whole=whole, sequence=sequence) as source,
        session.connected(server) as broker,
        recording.sent(record, topic) as records,
    ):
        publisher = Publisher(
            broker,
            topic,
            key=key,
            message_id=message_id,
            headers=headers,
            partition=partition,
            retry_safe=retry_safe,
            records=records,
        )
        values = sources.limited(source, count)
        if paced:
            _paced(publisher, values, rate or SEQUENCE_RATE_PER_S, for_, as_json=as_json)
        else:
            _at_once(publisher, values, for_, as_json=as_json)


def _headers(pairs: list[str]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        name, equals, content = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is no header; write NAME=VALUE", param_hint="'--header'")
        headers[name] = content
    return headers


@contextlib.contextmanager
def _source(
    message: str | None, file: Path | None, for_s: float | None, *, whole: bool, sequence: bool
) -> Iterator[Iterator[list[bytes]]]:
    ends = None if for_s is None else time.monotonic() + for_s
    if sequence:
        yield sources.sequence()
        return
    if message not in (None, "-"):
        assert message is not None
        yield sources.repeated(os.fsencode(message))
        return
    if file is not None:
        with file.open("rb") as opened:
            yield sources.whole(opened.fileno()) if whole else sources.lines(opened.fileno(), ends)
        return
    if message is None and sys.stdin.isatty():
        raise typer.BadParameter("give a MESSAGE, pipe lines in, or write `-` to type them")
    yield sources.whole(sys.stdin.fileno()) if whole else sources.lines(sys.stdin.fileno(), ends)


def _at_once(publisher: Publisher, source: Iterator[list[bytes]], for_s: float | None, *, as_json: bool) -> None:
    """As fast as the broker takes them; one report at the end."""
    started = time.monotonic()
    with output.counter("messages") as counter:
        task = counter.add_task(f"publishing to {publisher.topic}", total=None)
        for values in source:
            publisher.publish(values)
            counter.update(task, completed=publisher.acknowledged)
            if for_s is not None and time.monotonic() - started >= for_s:
                break
    summary = publisher.summary(time.monotonic() - started)
    if as_json:
        output.print_json(summary.as_object())
    else:
        print(summary.as_text())


def _paced(
    publisher: Publisher, source: Iterator[list[bytes]], rate: float, for_s: float | None, *, as_json: bool
) -> None:
    """At a steady rate, with a line for each; what a broker that was away has missed is caught up on."""
    try:
        for due in pacing.paced(source, rate, for_s, Publisher.TOGETHER_MAX):
            _show(publisher.topic, publisher.publish(due), as_json=as_json)
    finally:
        if not as_json:
            output.note(f"published {plural(publisher.acknowledged, 'message')} to {publisher.topic}")


def _show(topic: str, published: Sequence[Published], *, as_json: bool) -> None:
    for one in published:
        if as_json:
            place = {"topic": topic, "partition": one.partition, "offset": one.offset, "duplicate": one.duplicate}
            output.print_json({**place, "buffered": True} if one.buffered else place)
        elif one.buffered:
            print(f"{topic}/{one.partition} {BUFFERED}", flush=True)
        else:
            before = " (was there before)" if one.duplicate else ""
            print(f"{topic}/{one.partition} at offset {one.offset}{before}", flush=True)
