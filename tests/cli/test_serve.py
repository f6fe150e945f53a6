"""Starting and stopping a broker: where settings come from, and what it says when it cannot start."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from testkit.commands import Running, holdfast, holdfast_process
from testkit.mounts import MIB, small_disk
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.node import config
from holdfast.storage.directory import DataDirectory
from holdfast.storage.doctor import examine
from tests.cli.program import Broker

ANYWHERE = ("--text", "127.0.0.1:0", "--http", "127.0.0.1:0")


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('node = "of-file"\nsync = "interval:7"\ndrain_ms = 77\n')
    flags = ("--config", str(file), "--node", "of-flag")
    with BrokerProcess(tmp_path / "data", *flags, environment={"HOLDFAST_NODE": "of-environment"}) as broker:
        assert broker.json("GET", "/v1/info")["node"] == "of-flag"

    env = {"HOLDFAST_NODE": "of-environment", "HOLDFAST_CONFIG": str(file)}
    checked = holdfast("config", "check", "--json", env=env).json
    assert (checked["node"], checked["sync"], checked["drain_ms"]) == ("of-environment", "interval:7", 77)


def test_config_check_shows_a_table_of_all_settings() -> None:
    shown = holdfast("config", "check")
    assert shown.code == 0
    assert "retention_check_ms" in shown.text and "These settings are fine." in shown.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('nodes = "a"', "there is no setting nodes; did you mean node?"),
        ("drain_ms = -1", "drain_ms is -1"),
        ('drain_ms = "soon"', "drain_ms is 'soon'"),
        ('sync = "sometimes"', "write group, interval:MS"),
        ("this is no TOML", "is not valid TOML"),
    ],
)
def test_wrong_setting_in_file_is_one_clear_line(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(content)
    refused = holdfast("config", "check", "--config", str(file))
    assert refused.code == 1
    assert said in refused.err and "[bad_config]" in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SYNCC", "there is no setting HOLDFAST_SYNCC; did you mean HOLDFAST_SYNC?"),
        ("SEGMENTS_BYTES", "did you mean HOLDFAST_SEGMENT_BYTES?"),
        ("XYZZY", "there is no setting HOLDFAST_XYZZY; unset it"),
        ("HTTP_PORT", "there is no setting HOLDFAST_HTTP_PORT;"),
    ],
)
def test_misspelt_setting_in_the_environment_is_refused(tmp_path: Path, name: str, said: str) -> None:
    environment = {"HOLDFAST_" + name: "1"}
    for command in (("config", "check"), ("up", "--data", str(tmp_path / "cluster"))):
        refused = holdfast(*command, env=environment)
        assert refused.code == 1 and said in refused.err and "[bad_config]" in refused.err, refused


def test_what_kubernetes_sets_for_services_is_no_misspelt_setting() -> None:
    """A service that is called holdfast, and one that is called holdfast-http."""
    names = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8090",
        "SERVICE_PORT_TEXT": "8080",
        "PORT": "tcp://10.0.0.1:8090",
    }
    names |= {"PORT_8090_TCP": "tcp://10.0.0.1:8090", "PORT_8090_TCP_PROTO": "tcp", "PORT_8090_TCP_ADDR": "10.0.0.1"}
    environment = {f"HOLDFAST_{between}{name}": value for between in ("", "HTTP_") for name, value in names.items()}
    assert config.load(None, environment, {}) == config.Config()


def _refused(tmp_path: Path, *options: str) -> str:
    """What `serve` says that does not start: one line."""
    ended = holdfast_process("serve", *ANYWHERE, "--data", str(tmp_path / "data"), *options)
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err
    return ended.err


def test_second_broker_on_one_directory_is_refused(own_broker: Broker) -> None:
    refused = holdfast_process("serve", *ANYWHERE, "--data", str(own_broker.data))
    assert refused.code == 1
    assert "is in use by another broker (process " in refused.err and "[data_directory]" in refused.err
    assert own_broker.run("check").code == 0


def test_directory_of_another_node_is_not_served_under_a_wrong_name(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", node="n2", now_ms=1).close()
    ended = holdfast_process("serve", "--data", str(tmp_path / "data"), "--node", "n7", "--http", "127.0.0.1:0")
    assert ended.code == 1 and "is the directory of n2, not of n7" in ended.err and "--data" in ended.err


def test_directory_of_another_format_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    identity = b'{"format": 99, "node": "n1", "created_ms": 0}\n'
    (data / "holdfast.json").write_bytes(identity)
    said = _refused(tmp_path)
    assert "was written in format 99" in said and "use the version of holdfast that wrote it" in said
    assert (data / "holdfast.json").read_bytes() == identity
    assert not (data / "state.sqlite").exists()


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    assert "name another with --data" in _refused(tmp_path)


@pytest.mark.root
def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "read-only", MIB) as place:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        ended = holdfast_process("serve", *ANYWHERE, "--data", str(place))
    assert ended.code == 1 and "Traceback" not in ended.err
    assert "Read-only file system" in ended.err and str(place) in ended.err


def test_port_in_use_names_the_port_and_the_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = _refused(tmp_path, "--http", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in said and "--http" in said and "in use" in said


def test_ready_file_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    refused = holdfast_process("serve", *ANYWHERE, "--ready-file", str(tmp_path / "nowhere" / "ready.json"))
    assert refused.code == 2 and "there is no directory" in refused.err


def test_sigterm_keeps_what_was_acknowledged_and_exits_zero(own_broker: Broker) -> None:
    host, port = own_broker.text.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as replies:
        assert replies.readline().startswith(b"CONNACK|")
        connection.sendall(b"".join(b"PUBLISH|drained|%d\n" % number for number in range(20_000)))
        assert replies.readline().startswith(b"PUBACK|")
        own_broker.terminate()
        acknowledged = 1 + sum(line.startswith(b"PUBACK|") for line in replies)
    report = examine(own_broker.data)
    assert report.messages >= acknowledged
    assert report.problems == []


def test_ctrl_c_stops_a_broker_in_order(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    with Running("serve", *ANYWHERE, "--data", str(tmp_path / "data"), "--ready-file", str(ready_file)) as serving:
        wait_until(ready_file.exists, "the broker starts")
        ended = serving.end(signal.SIGINT)
    assert ended.code == 0, ended
    assert "holdfast publish greetings" in ended.text
    assert not ready_file.exists()
