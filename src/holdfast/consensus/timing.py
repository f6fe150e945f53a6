"""How long members wait for each other.

The consensus counts in ticks; `ElectionSettings` is what a node's settings say, in milliseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# A follower must be able to miss one heartbeat without standing for election.
_HEARTBEATS_PER_TIMEOUT_MIN: Final = 2
_TIMEOUT_MS_MAX: Final = 600_000
_DIGITS_MAX: Final = 9


class Timing(NamedTuple):
    """All in ticks. A follower waits for a leader `election_ticks`, and less than `election_spread_ticks` more."""

    heartbeat_ticks: int = 2
    election_ticks: int = 10
    election_spread_ticks: int = 10
    # The longest random wait before an election when the leader's node is known to be gone.
    suspicion_ticks: int = 4
    # A group goes to sleep this long after its last entry.
    idle_ticks: int = 20
    # Whether followers hear of a commit at once, or with the next entries or heartbeat, whichever comes first.
    tells_commits_at_once: bool = True


DEFAULT_TIMING = Timing()


class ElectionSettings(NamedTuple):
    """When a node says that it leads, and when it stands for election."""

    heartbeat_ms: int = 100
    timeout_ms_min: int = 500
    timeout_ms_max: int = 1000
    # The node that leads a new cluster first, if it is there.
    initial_leader: str | None = None
    # A voter that was silent for this long loses its vote, even if only one is left; `None`: never.
    shrink_after_ms: int | None = None

    def timing(self, tick_ms: int) -> Timing:
        heartbeat_ticks = max(1, round(self.heartbeat_ms / tick_ms))
        election_ticks = max(heartbeat_ticks + 1, round(self.timeout_ms_min / tick_ms))
        return Timing(
            heartbeat_ticks=heartbeat_ticks,
            election_ticks=election_ticks,
            election_spread_ticks=max(0, round(self.timeout_ms_max / tick_ms) - election_ticks),
            idle_ticks=max(Timing().idle_ticks, 10 * heartbeat_ticks),
        )

    def refusal(self, own_name: str, other_name: str, said: str | None) -> str | None:
        """Why a node does not talk to another one that says how often it sends heartbeats; `None` if it does.

        A node that sends too few could not lead: the others would always depose it.
        """
        said = str(ElectionSettings().heartbeat_ms) if said is None else said
        if not _is_number(said):
            return f"{other_name} does not say clearly how often it sends heartbeats: that is a number of milliseconds"
        needed_ms = int(said) * _HEARTBEATS_PER_TIMEOUT_MIN
        if needed_ms <= self.timeout_ms_min:
            return None
        return (
            f"{other_name} sends a heartbeat every {int(said)} ms, and {own_name} stands for election after "
            f"{self.timeout_ms_min} ms: set election_timeout_ms of {own_name} to at least {needed_ms}, or heartbeat_ms "
            f"of {other_name} to at most {self.timeout_ms_min // _HEARTBEATS_PER_TIMEOUT_MIN}"
        )


DEFAULT_ELECTIONS = ElectionSettings()


def election_timeout_ms(text: str | None, heartbeat_ms: int) -> tuple[int, int]:
    """The shortest and the longest timeout, from `MIN:MAX` or one number. Raises `ValueError` with what to write."""
    if text is None:
        return heartbeat_ms * 5, heartbeat_ms * 10
    first, colon, last = text.partition(":")
    last = last if colon else first
    if not (_is_number(first) and _is_number(last)):
        raise ValueError("write MIN:MAX milliseconds, such as 500:1000")
    shortest, longest = int(first), int(last)
    lowest = heartbeat_ms * _HEARTBEATS_PER_TIMEOUT_MIN
    if not lowest <= shortest <= longest <= _TIMEOUT_MS_MAX:
        raise ValueError(
            f"it goes from at least {lowest} (two heartbeats of {heartbeat_ms} ms) to at most {_TIMEOUT_MS_MAX}, and "
            "MIN is not above MAX"
        )
    return shortest, longest


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
