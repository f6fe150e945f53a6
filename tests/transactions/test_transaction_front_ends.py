"""Transactions over HTTP, in the client, on the command line and in the documents."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testkit.commands import holdfast as holdfast_command
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

import holdfast
from holdfast.client import RemoteError
from holdfast.model.errors import CallerError
from holdfast.model.limits import RECEIPTS_PER_COMMIT_MAX
from holdfast.model.messages import NewMessage
from holdfast.wire.batch_builder import build_values
from tests.http.http_server import Server, serving

DOCUMENT = Path(__file__).parents[2] / "docs/transactions.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


def url(server: Server) -> str:
    return f"holdfast://127.0.0.1:{server.port}"


def test_stage_and_commit_over_http(server: Server) -> None:
    staged = server.call(
        "POST",
        "/v1/transactions/http/stage?topic=web&number=4&attempt=first",
        {"messages": [{"value": "a", "key": "k"}, {"json": {"b": 1}}]},
    )
    receipts = json.loads(staged.body)["receipts"]
    assert [each["count"] for each in receipts] == [2]
    named = [each["receipt"] for each in receipts]
    committed = server.call("POST", "/v1/transactions/http/commit", {"number": 4, "receipts": named})
    assert json.loads(committed.body) == {"writer": "http", "number": 4, "duplicate": False, "last_number": 4}
    again = server.call("POST", "/v1/transactions/http/commit", {"number": 4, "receipts": named})
    assert json.loads(again.body)["duplicate"]
    assert json.loads(server.get("/v1/transactions/http").body)["last_number"] == 4
    listed = json.loads(server.get("/v1/transactions").body)["writers"]
    assert "http" in [each["writer"] for each in listed]
    read = json.loads(server.get("/v1/topics/web/partitions/0/messages").body)["messages"]
    assert [message["value"] for message in read] == ["a", '{"b":1}']


def test_batches_without_a_checksum_get_one_where_that_is_said(server: Server) -> None:
    batch = build_values([b"a", b"b"], 1)
    batch[17:21] = bytes(4)
    path = "/v1/transactions/sums/stage?topic=sums&number=0&partition=0"
    with holdfast.connect_blocking(url(server)) as broker:
        transaction = broker.transaction("sums", 0)
        with pytest.raises(RemoteError, match="CRC32C"):
            transaction.stage_batches("sums", 0, batch)
        headers = {"Content-Type": "application/vnd.holdfast.batches"}
        answer = server.call("POST", path + "&unsummed=true", bytes(batch), headers)
        transaction.commit([json.loads(answer.body)["receipts"][0]["receipt"]])
        assert [message.value for message in broker.read("sums")] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("x/stage?topic=t", {"messages": [{"value": "a"}]}, "bad_value"),
        ("x/stage?number=1", {"messages": [{"value": "a"}]}, "bad_value"),
        ("x/stage?topic=t&number=x", {"messages": [{"value": "a"}]}, "bad_value"),
        ("x/stage?topic=t&number=1", {"messages": []}, "bad_message"),
        ("x/stage?topic=t&number=1&partition=7", {"messages": [{"value": "a"}]}, "partition_not_found"),
        ("x/stage?topic=.holdfast.staged&number=1", {"messages": [{"value": "a"}]}, "bad_topic"),
        ("%2F/stage?topic=t&number=1", {"messages": [{"value": "a"}]}, "bad_writer"),
        ("x/commit", {"number": -1, "receipts": []}, "bad_value"),
        ("x/commit", {"number": 1, "receipts": ["?"]}, "bad_receipt"),
        ("x/commit", {"number": 1, "receipts": ["a"] * (RECEIPTS_PER_COMMIT_MAX + 1)}, "too_large"),
        ("x/commit", {"number": 1}, "bad_value"),
        ("x/abort", {"reason": "x" * 300}, "bad_value"),
    ],
)
def test_what_is_wrong_has_its_code(server: Server, path: str, body: dict[str, object], code: str) -> None:
    answer = server.call("POST", f"/v1/transactions/{path}", body)
    assert json.loads(answer.body)["error"]["code"] == code, answer


def test_internal_topics_cannot_be_reached_over_http(server: Server) -> None:
    server.call("POST", "/v1/transactions/x/stage?topic=t&number=1", {"messages": [{"value": "a"}]})
    for name in (".holdfast.staged", ".holdfast.transactions"):
        for method, path in (
            ("GET", f"/v1/topics/{name}"),
            ("DELETE", f"/v1/topics/{name}"),
            ("GET", f"/v1/topics/{name}/partitions/0/messages"),
            ("GET", f"/v1/topics/{name}/tail"),
            ("GET", f"/v1/topics/{name}/cursors/w.x"),
            ("GET", f"/v1/topics/{name}/cursors/w.x/messages"),
        ):
            answer = server.call(method, path)
            assert json.loads(answer.body)["error"]["code"] == "bad_topic", (path, answer)
        answer = server.call("POST", f"/v1/topics/{name}/messages", {"messages": [{"value": "a"}]})
        assert json.loads(answer.body)["error"]["code"] == "bad_topic"
        answer = server.call("POST", "/v1/topics", {"topic": name})
        assert json.loads(answer.body)["error"]["code"] == "bad_topic"
    assert not [each for each in json.loads(server.get("/v1/topics").body)["topics"] if each["topic"][0] == "."]


async def test_client_stages_from_tasks_and_commits_once(server: Server) -> None:
    async with holdfast.connect(url(server)) as broker:
        await broker.create_topic("many", partitions=3)
        transaction = broker.transaction("client", 0)
        messages = [NewMessage(value=b"%d" % i, key=b"%d" % (i % 7)) for i in range(50)]
        await asyncio.gather(
            transaction.stage("many", messages),
            transaction.stage("many", [b"%d" % i for i in range(1000)]),
            transaction.stage_batches("many", 2, build_values([b"raw"], 1)),
        )
        assert not await broker.read("many", 2)
        assert not (await transaction.commit()).duplicate
        found = [message for number in range(3) for message in await broker.read("many", number, messages_max=2000)]
        assert len(found) == 1051
        with pytest.raises(RemoteError, match="these messages are not stored"):
            await broker.transaction("client", 0).stage("many", ["late"])
        await broker.transaction("client", 1).stage("many", ["dropped"])
        await broker.transaction("client", 1).abort("no longer wanted")
        assert (await broker.writer("client")).last_number == 0
        await broker.forget_writer("client")
        with pytest.raises(RemoteError, match="there is no writer"):
            await broker.writer("client")


def test_skipped_number_is_refused_in_words_of_its_own(server: Server) -> None:
    with holdfast.connect_blocking(url(server)) as broker:
        broker.transaction("skipping", 7).commit([])
        with pytest.raises(RemoteError, match=r"numbers only go up.*Use a number above 7") as refused:
            broker.transaction("skipping", 5).stage("skipped", ["never committed"])
        assert refused.value.code == "transaction_committed"


def test_aborted_transaction_takes_nothing_more_and_keeps_its_number(server: Server) -> None:
    with holdfast.connect_blocking(url(server)) as broker:
        transaction = broker.transaction("aborting", 3)
        transaction.stage("aborted", ["dropped"])
        transaction.abort()
        for use in (transaction.commit, lambda: transaction.stage("aborted", ["more"])):
            with pytest.raises(CallerError, match=r"begin it again with transaction\('aborting', 3\)") as refused:
                use()
            assert refused.value.code == "transaction_aborted"
        assert broker.writer("aborting").last_number is None
        again = broker.transaction("aborting", 3)
        again.stage("aborted", ["kept"])
        assert not again.commit().duplicate
        assert [message.text for message in broker.read("aborted")] == ["kept"]


def test_transaction_commits_at_the_end_of_its_block_and_drops_what_an_error_left(server: Server) -> None:
    with holdfast.connect_blocking(url(server)) as broker:
        with broker.transaction("block", 0) as transaction:
            transaction.stage("blocks", ["one"])
        with pytest.raises(ZeroDivisionError), broker.transaction("block", 1) as transaction:
            transaction.stage("blocks", ["two"])
            print(1 // 0)
        with broker.transaction("block", 1) as transaction:
            receipts = transaction.stage("blocks", ["three"])
            transaction.commit(receipts)
        assert [message.text for message in broker.read("blocks")] == ["one", "three"]
        assert broker.writer("block").last_number == 1


@pytest.mark.parametrize("number", ["1", 1.0, True, -1, None])
def test_number_that_is_none_is_refused_at_once(server: Server, number: Any) -> None:
    with holdfast.connect_blocking(url(server)) as broker, pytest.raises(CallerError) as refused:
        broker.transaction("numbers", number)
    assert refused.value.code == "bad_value" and repr(number) in str(refused.value)


def test_abort_needs_no_body(server: Server) -> None:
    with holdfast.connect_blocking(url(server)) as broker:
        transaction = broker.transaction("bodyless", 0)
        transaction.stage("bodies", ["dropped"])
        assert server.call("POST", "/v1/transactions/bodyless/abort").status == 204
        with pytest.raises(RemoteError, match="dropped by an abort"):
            transaction.commit()
    refused = server.call("POST", "/v1/transactions/bodyless/abort", b"reason=x", {"Content-Type": ""})
    assert refused.status == 415 and "add the header Content-Type: application/json" in refused.body.decode()


def test_transaction_that_goes_as_it_should_is_no_line_in_the_log_of_a_broker(tmp_path: Path) -> None:
    """A streaming query has one for each of its batches."""
    with BrokerProcess(tmp_path / "data") as running:
        with holdfast.connect_blocking(f"holdfast://127.0.0.1:{running.http_address[1]}") as broker:
            broker.transaction("everyday", 0).commit([])
            broker.transaction("everyday", 1).abort("on purpose")
        wait_until(lambda: "transaction_aborted" in running.log(), "the abort is in the log")
        assert "transaction_committed" not in running.log()


def test_commands_say_how_far_writers_are(server: Server) -> None:
    with holdfast.connect_blocking(url(server)) as broker:
        broker.transaction("cli", 12).commit([])
        broker.transaction("of-spark", 5 << 31 | 77).commit([])

    def run(*words: str) -> str:
        done = holdfast_command("transactions", *words, "--server", f"127.0.0.1:{server.port}")
        assert done.code == 0, done
        return done.text

    listed = {line.split()[0]: line.split()[1:3] for line in run("list").splitlines()[1:]}
    assert listed["cli"] == ["12", "-"] and listed["of-spark"] == [str(5 << 31 | 77), "5"]
    assert run("show", "cli").startswith("cli committed 12 at ")
    assert json.loads(run("show", "cli", "--json"))["last_number"] == 12
    assert run("forget", "cli", "--yes") == "forgot cli\n"


def test_examples_of_the_document_run_and_print_what_it_shows(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCUMENT.read_text("utf-8").replace("127.0.0.1:8090", f"127.0.0.1:{server.port}")
    examples = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    for source, shown in examples:
        code = compile(source, str(DOCUMENT), "exec")
        exec(code, {})
        said = capsys.readouterr().out.splitlines()
        assert [line for line in said if not re.match(r"\d{4}-\d\d-\d\d ", line)] == shown.splitlines()
