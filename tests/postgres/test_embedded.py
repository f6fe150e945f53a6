"""`holdfast serve --store`: a database of the broker's own, and one of somebody else's with a password."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from testkit.commands import holdfast, holdfast_process
from testkit.postgres import Server
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.backends.postgres import address
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.model.errors import ConfigError
from holdfast.node.config import Config, load
from tests.postgres.stores import query

SECRET = "s3cr3t/ä:@"
QUOTED = "s3cr3t%2F%C3%A4%3A%40"


def server_pid(broker: BrokerProcess) -> int:
    return int((broker.data / "postgres" / "postmaster.pid").read_text().split()[0])


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_broker_brings_its_own_database_and_finds_everything_after_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--store", "postgres")
    with broker:
        broker.publish_http("orders", b"one", b"two")
        left = server_pid(broker)
        broker.kill()
        assert not is_gone(left), "nobody stopped it"
        broker.start()
        assert is_gone(left), "two servers over one directory"
        assert broker.stored_values("orders") == [b"one", b"two"]
        broker.publish_http("orders", b"three")
        with broker.connect() as client:
            client.say(b"SUBSCRIBE|orders|reader", b"PUBLISH|orders|four")
            assert sorted(client.lines(3))[0] == b"MESSAGE|orders|four"
        second = server_pid(broker)
        broker.terminate()
        wait_until(lambda: is_gone(second), "the database is stopped with the broker")
        # As after a power failure: the file names a process that is something else by now.
        (broker.data / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n{broker.data}/postgres\n")
        broker.start()
        assert broker.stored_values("orders") == [b"one", b"two", b"three", b"four"]
        os.kill(server_pid(broker), 9)
        wait_until(lambda: broker.metric("holdfast_store_outages_total") >= 1, "the loss is noticed")
        wait_until(lambda: broker.metric("holdfast_store_up") == 1, "the database is started again")
        broker.publish_http("orders", b"five")
        broker.terminate()


async def test_server_that_was_left_is_found_by_another_path(tmp_path: Path, own_server: Server) -> None:
    link = tmp_path / "link"
    link.symlink_to(own_server.path.parent)
    left = own_server._server._process
    assert left is not None
    ending = asyncio.create_task(asyncio.to_thread(left.wait))  # somebody has to reap it
    again = EmbeddedServer(link / "postgres")
    try:
        url = await again.start()
        assert ending.done()
        assert await query(url, "SELECT 1") == [(1,)]
    finally:
        await again.stop()


async def test_password_is_used_and_never_shown(tmp_path: Path, own_server: Server) -> None:
    await query(own_server.url, "SELECT set_config('log_statement', 'none', false)")
    await query(own_server.url, f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'")
    await query(own_server.url, "CREATE DATABASE shop OWNER app")
    (own_server.path / "pg_hba.conf").write_text("local all holdfast trust\nlocal all all scram-sha-256\n")
    await query(own_server.url, "SELECT pg_reload_conf()")
    sockets = own_server.url.partition("host=")[2]
    url = f"postgresql://app:{QUOTED}@/shop?host={sockets}"
    shown: list[str] = []
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_STORE": url}) as broker:
        broker.publish_http("orders", b"one")
        shown.append(str(broker.call("GET", "/metrics")))
        for command in (["check"], ["cluster", "status"]):
            told = holdfast_process(*command, "--server", "{}:{}".format(*broker.http_address))
            assert told.code == 0 and "shop at" in told.text
            shown.append(told.text + told.err)
        shown.append(str(broker.json("GET", "/v1/info")) + str(broker.json("GET", "/v1/cluster")))
        own_server.kill()
        wait_until(lambda: broker.metric("holdfast_store_up") == 0, "the loss is noticed")
        shown.append(str(broker.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": "x"}]})))
        shown.append(str(broker.call("GET", "/ready")))
        await own_server.start()
        wait_until(lambda: broker.metric("holdfast_store_up") == 1, "it is back")
        broker.terminate()
        shown.append(broker.log())
        assert "database_away" in broker.log() and "database_back" in broker.log()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["spill"], (
        "a broker without state keeps nothing else"
    )
    environment = {"HOLDFAST_STORE": url}
    told = holdfast_process("serve", "--http", "127.0.0.1:0", "--peer", "x:1", env=environment)
    shown.append(told.text + told.err)
    for command in (["config", "check"], ["config", "check", "--json"]):
        told = holdfast(*command, env=environment)
        shown.append(told.text + told.err)
    told = holdfast_process("serve", env={"HOLDFAST_STORE": url.replace(QUOTED, QUOTED + "wrong")})
    assert told.code != 0 and "refuses this broker" in told.err, "a wrong password is said at the start"
    shown.append(told.text + told.err)
    for text in shown:
        assert "s3cr3t" not in text, text


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@ss@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u@h/d?password=p&x=1", "postgresql://u@h/d?password=***&x=1"),
        ("postgresql:///d?host=/run&user=u", "postgresql:///d?host=/run&user=u"),
        ("postgresql://u:p@h1:5432,h2:5433/d", "postgresql://u:***@h1:5432,h2:5433/d"),
    ],
)
def test_address_is_shown_without_its_password(text: str, hidden: str) -> None:
    assert address.shown(text) == hidden
    assert Config(store=text).checked().shown().store == hidden


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:p4ss@h/d",
        "postgresql://u:p4ss@/d",
        "postgresql://u:p4ss@h:port/d",
        "u:p4ss",
        "u:p4ss@h/d",
        "postgresql:/u:p4ss@h/d",
        "postgresql://u:a/p4ss@h/d",
        "postgresql://u:1/p4ss@h/d",
        "postgresql://u:1#p4ss@h/d",
        "postgresql://u:1?p4ss@h/d",
        "host=h password='a p4ss'",
    ],
)
def test_address_that_is_none_is_refused_without_repeating_the_password(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, {"HOLDFAST_STORE": text}, {})
    assert "postgresql://" in refused.value.message or "host" in refused.value.message
    assert text == "u:p4ss" or "p4ss" not in refused.value.message


def test_missing_packages_are_named_with_what_to_install(tmp_path: Path) -> None:
    blocked = tmp_path / "asyncpg.py"
    blocked.write_text("raise ImportError('not here', name='asyncpg')")
    environment = {"PYTHONPATH": str(tmp_path), "HOLDFAST_STORE": "postgresql://u:p@127.0.0.1:1/d"}
    told = holdfast_process("serve", env=environment)
    assert told.code != 0
    assert "asyncpg" in told.err and "pip install -e '.[postgres]'" in told.err
