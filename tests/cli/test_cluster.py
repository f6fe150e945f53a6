"""`holdfast cluster`, and every other command against a cluster of which one node is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testkit.commands import Ended, Running, holdfast
from testkit.wait import wait_until

from holdfast.testing import LocalCluster
from tests.cli.program import numbered, on_terminal

SERVER = "--server"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3) as made:
        yield made


@pytest.fixture
def whole(cluster: LocalCluster) -> LocalCluster:
    """All nodes are there when a test begins, whatever the one before did to them."""
    for node in cluster.nodes:
        if not node.is_running:
            cluster.spawn(node)
    cluster.wait_until_ready()
    return cluster


def ok(cluster: LocalCluster, *arguments: str, given: bytes = b"") -> Ended:
    """A command that has to work with all addresses given, whoever is away."""
    ended = holdfast(*arguments, SERVER, ",".join(cluster.http_addresses), given=given)
    assert ended.code == 0, ended
    return ended


# --- status -------------------------------------------------------------------------------------------------


def test_status_shows_who_leads_and_where_everybody_is(whole: LocalCluster) -> None:
    leader = whole.control_leader()
    described = ok(whole, "cluster", "status", "--json").json
    assert described["leader"] == leader and described["has_quorum"] and described["missing"] == []
    assert [node["addresses"]["http"] for node in described["nodes"]] == whole.http_addresses
    shown = ok(whole, "cluster", "status").text
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["node", "n1", "n2", "n3"]
    assert [line.split()[0] for line in shown.splitlines() if "control leader" in line] == [leader]
    assert "All 3 nodes are there" in shown and "1 of 3 may fail" in shown


def test_status_names_the_node_that_is_away_and_says_what_to_do(whole: LocalCluster) -> None:
    whole.kill("n1")
    wait_until(
        lambda: holdfast("cluster", "status", SERVER, whole.nodes[1].http, "--json").json["missing"] == ["n1"], "it"
    )
    shown = ok(whole, "cluster", "status").text
    assert "n1 cannot be reached" in shown and "0 more may fail. Start n1 again, or have another" in shown
    row = next(line for line in shown.splitlines() if line.startswith("n1 "))
    assert "down" in row


def test_status_without_majority_fails_and_says_whom_to_start(whole: LocalCluster) -> None:
    whole.kill("n1", "n3")
    wait_until(lambda: holdfast("cluster", "status", SERVER, whole.nodes[1].http).code == 1, "the majority is missed")
    shown = holdfast("cluster", "status", SERVER, whole.nodes[1].http)
    assert "No majority of 3 nodes" in shown.text and "start n1, n3 again" in shown.text


# --- members ------------------------------------------------------------------------------------------------


def test_node_is_added_drained_and_removed_from_the_command_line(whole: LocalCluster) -> None:
    joined = whole.add_node(wait=False)
    assert f"{joined} votes in every group" in ok(whole, "cluster", "add", joined, "--timeout", "60").text
    assert f"{joined} leads nothing" in ok(whole, "cluster", "drain", joined).text
    row = next(line for line in ok(whole, "cluster", "members").text.splitlines() if line.startswith(f"{joined} "))
    assert row.split()[1] == "drained"
    assert f"{joined} stays" in ok(whole, "cluster", "remove", joined, "--undo").text
    for refused, word in (("n9", "no node n9 has asked to join within the time"), (joined, "bad_value")):
        ended = holdfast("cluster", "replace", joined, refused, "--timeout", "0.1", SERVER, whole.nodes[0].http)
        assert ended.code == 1 and word in ended.err
    mistyped = holdfast("cluster", "add", "n9", "--timeout", "0.1", SERVER, whole.nodes[0].http)
    assert mistyped.code == 1 and "holdfast serve --node n9" in mistyped.err and "it goes on" not in mistyped.err
    # Asked through the very node that leaves: what it knows is old once it has, so another one is asked.
    through = f"{whole.node(joined).http},{whole.nodes[0].http}"
    removed = holdfast("cluster", "remove", joined, "--timeout", "60", SERVER, through)
    assert removed.code == 0 and f"{joined} has left; 3 nodes vote now, and 1 of them may fail" in removed.text
    checked = holdfast("check", SERVER, whole.node(joined).http)
    assert checked.code == 1 and "was taken out of its cluster" in checked.text and "--join" in checked.text, checked
    described = ok(whole, "cluster", "members", "--json").json
    assert {member["node"]: member["state"] for member in described["members"]}[joined] == "removed"
    whole.kill(joined)
    whole.nodes.remove(whole.node(joined))


@pytest.mark.parametrize("change", [("remove", "n3"), ("replace", "n3", "n2")], ids=["remove", "replace"])
def test_cluster_does_not_lose_its_last_spare_node_without_a_word(whole: LocalCluster, change: tuple[str, ...]) -> None:
    ended = holdfast("cluster", *change, SERVER, whole.nodes[0].http)
    assert ended.code == 2 and "2 voting nodes, of which none may fail" in ended.err, ended
    members = ok(whole, "cluster", "members", "--json").json["members"]
    assert all(member["state"] == "voter" for member in members if member["state"] != "removed")


# --- transfer -----------------------------------------------------------------------------------------------


def test_control_group_is_led_by_whom_one_says(whole: LocalCluster) -> None:
    for target in ("n1", "n2", "n3", "n1"):
        assert (
            f"{target} leads the control group now"
            in ok(whole, "cluster", "transfer", "--control", "--to", target).text
        )
        assert whole.control_leader() == target


def test_partition_is_led_by_whom_one_says(whole: LocalCluster) -> None:
    ok(whole, "topics", "create", "moved", "--partitions", "2")
    for target in ("n1", "n2", "n3", "n1"):
        assert f"{target} leads moved/1 now" in ok(whole, "cluster", "transfer", "moved/1", "--to", target).text
    moved = ok(whole, "cluster", "transfer", "moved", "--to", "n2", "--json").json
    assert moved == {"topic": "moved", "partition": 0, "leader": "n2"}


def test_partition_of_a_topic_with_slashes_is_led_by_whom_one_says_and_shown_so(whole: LocalCluster) -> None:
    ok(whole, "topics", "create", "a/b/7", "--partitions", "2")
    moved = ok(whole, "cluster", "transfer", "a/b/7/1", "--to", "n2", "--json").json
    assert moved == {"topic": "a/b/7", "partition": 1, "leader": "n2"}

    def leaders_shown() -> list[str]:
        rows = [line.split() for line in ok(whole, "topics", "describe", "a/b/7").lines]
        return [row[1] for row in rows if row[0] == "1"]

    wait_until(lambda: leaders_shown() == ["n2"], "it is shown")


def test_transfer_that_cannot_be_says_why(whole: LocalCluster) -> None:
    ok(whole, "topics", "create", "stays")
    server = (SERVER, whole.http_addresses[0])
    nobody = holdfast("cluster", "transfer", "stays", "--to", "n9", *server)
    assert nobody.code == 1 and "n9" in nobody.err
    assert holdfast("cluster", "transfer", "nowhere", "--to", "n1", *server).code == 1
    assert "stays/x" in holdfast("cluster", "transfer", "stays/x", "--to", "n1", *server).err
    for wrong in (("stays", "--control"), (), ("",)):
        ended = holdfast("cluster", "transfer", *wrong, "--to", "n1", *server)
        assert ended.code == 2, ended


# --- the other commands -------------------------------------------------------------------------------------


def test_every_command_goes_on_with_another_node(whole: LocalCluster) -> None:
    ok(whole, "topics", "create", "orders")
    whole.kill("n1")
    ok(whole, "publish", "orders", given=numbered(2000))
    assert ok(whole, "subscribe", "orders", "--from", "earliest", "--count", "2000").out == numbered(2000)
    assert ok(whole, "subscribe", "orders", "--as", "billing", "--from", "earliest", "--count", "2").lines == ["1", "2"]
    assert ok(whole, "subscribe", "orders", "--as", "billing", "--count", "1").lines == ["3"]
    assert ok(whole, "cursors", "list", "orders", "--json").json["partitions"][0]["offset"] == 3
    ok(whole, "cursors", "seek", "orders", "billing", "--to", "earliest")
    ok(whole, "cursors", "delete", "orders", "billing", "--yes")
    assert "orders" in ok(whole, "topics", "list").text
    ok(whole, "topics", "describe", "orders")
    ok(whole, "topics", "delete", "orders", "--yes")


def test_check_says_who_leads_and_who_is_missing(whole: LocalCluster) -> None:
    leader = whole.control_leader()
    followers = [node for node in whole.nodes if node.id != leader]
    whole.kill(followers[0])
    server = (SERVER, followers[1].http)
    wait_until(
        lambda: holdfast("check", *server, "--json").json["cluster"]["missing"] == [followers[0].id], "it is missed"
    )
    facts = holdfast("check", *server, "--json").json
    assert facts["ready"] and facts["cluster"]["leader"] == leader and facts["cluster"]["nodes"] == ["n1", "n2", "n3"]
    shown = holdfast("check", *server)
    assert shown.code == 0 and f"{followers[0].id} cannot be reached" in shown.text and f"{leader}, since" in shown.text


@pytest.mark.parametrize("name", [(), ("--as", "billing")], ids=["live", "named"])
def test_subscriber_whose_node_dies_goes_on_without_loss_or_repetition(
    whole: LocalCluster, name: tuple[str, ...]
) -> None:
    topic = f"followed{len(name)}"
    ok(whole, "topics", "create", topic)
    all_of_them = ",".join(whole.http_addresses)
    ok(whole, "publish", topic, given=numbered(3))
    arguments = ("subscribe", topic, *name, "--from", "earliest", "--count", "2003", SERVER, all_of_them)
    with Running(*arguments) as reading:
        assert [reading.line() for _ in range(3)] == [b"1\n", b"2\n", b"3\n"]
        # The first address is the one it reads from.
        whole.kill("n1")
        ok(whole, "publish", topic, given=numbered(2000))
        ended = reading.ended()
    assert ended.code == 0, ended
    assert ended.out == numbered(2000)
    assert "lost the broker" in ended.err
    if name:
        assert ok(whole, "cursors", "list", topic, "--json").json["lag"] == 0


def test_publisher_whose_leader_dies_stores_every_message_once(whole: LocalCluster) -> None:
    ok(whole, "topics", "create", "paced")
    leader = whole.leader("paced")
    others = ",".join(node.http for node in whole.nodes if node.id != leader)
    with Running("publish", "paced", "--sequence", "--rate", "200", "--count", "400", SERVER, others) as publishing:
        for _ in range(50):
            publishing.line()
        whole.kill(leader)
        ended = publishing.ended()
    assert ended.code == 0, ended
    assert ok(whole, "subscribe", "paced", "--from", "earliest", "--count", "400").out == numbered(400)
    assert ok(whole, "topics", "describe", "paced", "--json").json["messages"] == 400


@pytest.mark.parametrize("columns", [80, 150])
def test_status_fits_a_terminal(whole: LocalCluster, columns: int) -> None:
    seen = on_terminal("cluster", "status", SERVER, whole.http_addresses[0], view=True, columns=columns)
    rows = seen.screen.splitlines()[1:4]
    assert all(address in row for address, row in zip(whole.http_addresses, rows, strict=True)), seen
