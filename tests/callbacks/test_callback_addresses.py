"""A callback is no way into somebody else's network."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
from testkit.serving import serving

from holdfast.broker.callback_addresses import CallbackPolicy, default_name, parse_callback_address
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.model.errors import BadValue, CallbackRefused, ConfigError
from holdfast.node.config import Config
from tests.callbacks.receivers import listening

INSIDE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001:db8::1",
    "2001:0:7f00:1::",
    "2002:7f00:1::",
    "fc00::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "4000::1",
]


@pytest.mark.parametrize("inside", INSIDE)
def test_by_default_no_address_inside_a_network_is_connected_to(inside: str) -> None:
    policy = CallbackPolicy(["public", "local"], port_min=1024, is_local=False)
    with pytest.raises(CallbackRefused, match="callback_networks"):
        policy.check_ip(ip_address(inside))


@pytest.mark.parametrize("outside", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_for_everybody(outside: str) -> None:
    CallbackPolicy(["public"], port_min=1024, is_local=False).check_ip(ip_address(outside))
    with pytest.raises(CallbackRefused):
        CallbackPolicy(["10.0.0.0/8"], port_min=1024, is_local=False).check_ip(ip_address(outside))


def test_only_the_networks_that_are_named_are_open() -> None:
    policy = CallbackPolicy(["10.0.0.0/8", "fd00::/8"], port_min=1, is_local=False)
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        policy.check_ip(ip_address(inside))
    for other in ("11.0.0.1", "127.0.0.1", "fc00::1", "::ffff:192.168.0.1"):
        with pytest.raises(CallbackRefused):
            policy.check_ip(ip_address(other))


def test_behind_a_gateway_what_counts_is_the_address_that_it_makes_of_another() -> None:
    policy = CallbackPolicy(["public", "64:ff9b::/96", "2002::/16"], port_min=1, is_local=False)
    for outside in ("64:ff9b::808:808", "2002:808:808::1"):
        policy.check_ip(ip_address(outside))
    for inside in ("64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:a00:1::1"):
        with pytest.raises(CallbackRefused):
            policy.check_ip(ip_address(inside))


def test_low_ports_are_refused_unless_they_are_configured() -> None:
    address = parse_callback_address("8.8.8.8:25")
    with pytest.raises(CallbackRefused, match="callback_port_min"):
        CallbackPolicy(["public"], port_min=1024, is_local=False).check(address)
    CallbackPolicy(["public"], port_min=25, is_local=False).check(address)


def test_a_broker_that_others_reach_connects_to_nothing_on_its_own_machine() -> None:
    here, there = ip_address("127.0.0.1"), ip_address("::1")
    Config().checked().callback_policy.check_ip(here)
    Config(text="[::1]:8080").checked().callback_policy.check_ip(there)
    for listens in ({"text": "0.0.0.0:8080"}, {"http": "192.168.1.7:8090"}, {"queen": "example.org:6632"}):
        with pytest.raises(CallbackRefused):
            msgspec.structs.replace(Config(), **listens).checked().callback_policy.check_ip(here)


def test_a_broker_behind_one_that_passes_on_what_others_ask_for_is_not_local() -> None:
    policy = Config(http_host_names=["broker.example.org"]).checked().callback_policy
    with pytest.raises(CallbackRefused):
        policy.check_ip(ip_address("127.0.0.1"))


def test_where_nothing_is_allowed_nobody_subscribes_in_vain() -> None:
    for networks in ([], ["local"]):
        policy = CallbackPolicy(networks, port_min=1024, is_local=False)
        with pytest.raises(CallbackRefused, match="connects to nobody"):
            policy.check(parse_callback_address("receiver.example.org:9000"))


async def test_an_address_of_the_internet_that_is_this_machine_is_not_open_to_everybody() -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    class Everywhere(CallbackPolicy):
        """As if the addresses of this machine were such."""

        def check_ip(self, ip: object) -> None:
            pass

    async with listening(sleep) as address:
        for networks, is_local in ((["public"], True), (["public", "local"], False)):
            with pytest.raises(CallbackRefused, match="this machine"):
                policy = Everywhere(networks, port_min=1024, is_local=is_local)
                await Dialer(policy, 10).connect(parse_callback_address(address), asyncio.Protocol)
        for networks, is_local in ((["public", "local"], True), (["127.0.0.0/8"], False)):
            policy = Everywhere(networks, port_min=1024, is_local=is_local)
            await Dialer(policy, 10).connect(parse_callback_address(address), asyncio.Protocol)


def test_a_network_that_is_none_stops_the_broker_at_its_start() -> None:
    for wrong in ("10.0.0.1/8", "everything", "10.0.0.0/99", ""):
        with pytest.raises(ConfigError, match="network"):
            Config(callback_networks=[wrong]).checked()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ":9000",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "ho st:1",
        "-h:1",
        "a|b:9000",
        "[::1:9000",
        "[x]:9000",
        "a\n:1",
        "a..b:9000",
        "x" * 64 + ".example.org:9000",
    ],
)
def test_what_is_no_address_is_said_to_be_none(wrong: str) -> None:
    with pytest.raises(BadValue, match="HOST:PORT"):
        parse_callback_address(wrong)


def test_equal_addresses_have_equal_names_and_others_have_others() -> None:
    texts = ["h:9000", "h:9001", "10.0.0.1:9000", "[::1]:9000", "[fd00::1]:9000"]
    names = [default_name(parse_callback_address(text)) for text in texts]
    assert len(set(names)) == len(texts)
    assert default_name(parse_callback_address("[0:0::1]:9000")) == default_name(parse_callback_address("[::1]:9000"))


async def test_a_name_is_judged_by_what_it_resolves_to_and_nobody_is_connected_to(tmp_path: Path) -> None:
    came = asyncio.Event()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()

    assert socket.gethostbyname("localhost").startswith("127.")
    async with serving(tmp_path, callback_networks=["public"]) as broker, listening(note) as address:
        port = address.rpartition(":")[2]
        for host in ("127.0.0.1", "[::ffff:127.0.0.1]"):
            body = {"topic": "orders", "callback": f"{host}:{port}"}
            told = await broker.http("POST", "/v1/subscriptions", body, expect=403)
            assert told["error"]["code"] == "callback_refused"
        # Names, and ways to write an address that only a resolver understands.
        for name in ("localhost", "127.1", "0x7f000001", "2130706433"):
            body = {"topic": "orders", "callback": f"{name}:{port}"}
            await broker.http("POST", "/v1/subscriptions", body, expect=201)
        while any(
            each["state"] != "refused" for each in (await broker.http("GET", "/v1/subscriptions"))["subscriptions"]
        ):
            await asyncio.sleep(0.02)
        assert not came.is_set()
