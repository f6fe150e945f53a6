"""The commands of `holdfast bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.bench.via import Via
from holdfast.cli.options import SERVER_DEFAULT, Json, Server, examples
from holdfast.cli.quantities import size_bytes

if TYPE_CHECKING:
    from holdfast.cli.bench.report import Result
    from holdfast.cli.bench.run import Plan

app = typer.Typer(help="Measure a running broker.", no_args_is_help=True)

# A run that is larger than this is a stress test; whoever wants one says so with several runs.
MESSAGES_MAX: Final = 1_000_000_000
CONNECTIONS_MAX: Final = 256


Protocol = Annotated[
    Via,
    typer.Option("--protocol", help="text lines, http (JSON messages), or batches (record batches over HTTP)."),
]
Text = Annotated[
    str | None,
    typer.Option("--text", metavar="HOST:PORT", help="The text address; absent: the one that the broker names."),
]
Messages = Annotated[int, typer.Option(min=1, max=MESSAGES_MAX, metavar="N", help="How many messages.")]
Size = Annotated[int, typer.Option(parser=size_bytes, metavar="SIZE", help="The size of a message.")]


@app.command(
    "publish",
    epilog=examples(
        "holdfast bench publish",
        "holdfast bench publish --protocol http --batch 1000 --window 4000 --messages 500000",
        "holdfast bench publish --topic orders --size 1KiB --connections 4 --json",
    ),
)
def publish(
    protocol: Protocol = Via.TEXT,
    messages: Messages = 500_000,
    size: Size = "100",  # type: ignore[assignment]
    batch: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Messages in a request.")] = 1000,
    window: Annotated[
        int, typer.Option(min=1, max=10_000_000, metavar="N", help="Unacknowledged messages on a connection at most.")
    ] = 10_000,
    connections: Annotated[int, typer.Option(min=1, max=CONNECTIONS_MAX, metavar="N", help="Connections.")] = 1,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Publish to this topic; absent: one that is deleted afterwards.")
    ] = None,
    text: Text = None,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Publish at full speed: messages a second, and how long a request takes."""
    from holdfast.cli.bench.run import Plan, prepared

    plan = Plan(
        server=server,
        text=text,
        via=protocol,
        topic=topic,
        messages=messages,
        size_bytes=size,
        batch=batch,
        window=window,
        connections=connections,
    )
    with prepared(plan) as bench, output.bar() as bar:
        task = bar.add_task("publishing", total=messages)
        result = bench.publish(lambda done: bar.update(task, completed=done))
    _print(result, as_json=as_json)


@app.command(
    "consume",
    epilog=examples(
        "holdfast bench consume", "holdfast bench consume --protocol batches", "holdfast bench consume --topic orders"
    ),
)
def consume(
    protocol: Protocol = Via.TEXT,
    messages: Messages = 500_000,
    size: Size = "100",  # type: ignore[assignment]
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Read partition 0 of this topic; absent: one that is filled first."),
    ] = None,
    text: Text = None,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Read what is stored at full speed."""
    from holdfast.cli.bench.run import prepared

    plan = _plan(protocol, messages, size, topic, text, server)
    with prepared(plan) as bench, output.bar() as bar:
        filling = bar.add_task("filling", total=messages, visible=topic is None)
        reading = bar.add_task("reading", total=messages)
        result = bench.consume(
            lambda done: bar.update(filling, completed=done), lambda done: bar.update(reading, completed=done)
        )
    _print(result, as_json=as_json)


@app.command(
    "latency",
    epilog=examples("holdfast bench latency", "holdfast bench latency --protocol http --messages 5000 --size 1KiB"),
)
def latency(
    protocol: Protocol = Via.TEXT,
    messages: Messages = 1000,
    size: Size = "100",  # type: ignore[assignment]
    text: Text = None,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Publish one message at a time: until it is acknowledged, and until a waiting reader has it."""
    from holdfast.cli.bench.run import prepared

    plan = _plan(protocol, messages, size, None, text, server)
    with prepared(plan) as bench, output.bar() as bar:
        task = bar.add_task("one at a time", total=messages)
        result = bench.latency(lambda done: bar.update(task, completed=done))
    _print(result, as_json=as_json)


def _plan(protocol: Via, messages: int, size: int, topic: str | None, text: str | None, server: str) -> Plan:
    from holdfast.cli.bench.run import Plan

    return Plan(server=server, text=text, via=protocol, topic=topic, messages=messages, size_bytes=size)


def _print(result: Result, *, as_json: bool) -> None:
    from holdfast.cli.bench import report

    if as_json:
        output.print_json(result.as_object())
    else:
        report.show(result)
