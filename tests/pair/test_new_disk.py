"""A box that lost its disk comes back as the documentation says, whichever of the two it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from testkit.wait import wait_until

from holdfast.client.blocking import BlockingClient
from tests.pair.test_plain_clients import Box, boxes, publish_until_taken


def wait_until_together(*both: Box) -> None:
    def are_together() -> bool:
        try:
            return sorted(each.stands() for each in both) == ["backup", "primary"]
        except OSError:
            return False  # one of them is being started

    wait_until(are_together, "one is the primary and the other has everything")


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(0, id="that of the first primary"),
        pytest.param(1, id="that of the first backup", marks=pytest.mark.night),
    ],
)
def test_a_box_with_an_empty_disk_has_everything_again_and_takes_over(
    tmp_path: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with boxes(tmp_path) as pair:
        first, other = pair[lost], pair[1 - lost]
        publish_until_taken(pair[0], "standard", b"before")
        first.kill()
        wait_until(lambda: other.stands() == "alone", "the other one goes on")
        publish_until_taken(other, "standard", b"meanwhile")
        shutil.rmtree(tmp_path / f"holdfast-{first.port}")
        again = Box("backup", first.port, other.port, tmp_path)
        try:
            wait_until_together(again, other)
            other.kill()
            wait_until(lambda: again.stands() == "alone", "it takes over")
            publish_until_taken(again, "standard", b"after")
            assert values(again) == [b"before", b"meanwhile", b"after"]
            # Each is called as its directory says, whatever command it is started with.
            third = Box("primary", other.port, first.port, tmp_path)
            try:
                wait_until_together(again, third)
            finally:
                third.close()
        finally:
            again.close()


def values(box: Box) -> list[bytes]:
    with BlockingClient(f"http://127.0.0.1:{box.port + 10}") as client:
        return [message.value for message in client.read("topicC", messages_max=100)]
