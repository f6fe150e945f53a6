"""Which faults come together, when, and for how long: drawn from a seed, the same for the same seed. Pure.

Faults are dealt as cards are: each kind comes once before any comes again. An episode is one of them, often with one
or two more of other layers that overlap it; then everybody is well for a while. `episodes` has no end: a run takes as
many as it has time for. `one_by_one` has each fault by itself, in a given order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testkit.nemesis.fault import ALL, Fault

_LASTS_S: Final = (2.0, 9.0)
_AFTER_S: Final = (0.0, 3.0)
_HEALTH_S: Final = (1.0, 5.0)
# Of a fault that comes by itself.
_ALONE_S: Final = (0.5, 4.0)
_MORE: Final = (0.6, 0.4)


@dataclass(frozen=True, slots=True)
class Act:
    """One fault: how long after the beginning of its episode it comes, how long it lasts, and its own dice."""

    name: str
    after_s: float
    lasts_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Episode:
    number: int
    acts: tuple[Act, ...]
    # How long everybody is left in peace before it.
    health_s: float

    @property
    def name(self) -> str:
        return " + ".join(act.name for act in self.acts)


def episodes(seed: int, kinds: Mapping[str, type[Fault]], nodes: int) -> Iterator[Episode]:
    dice = random.Random(f"{seed}/script")
    deck: list[str] = []
    number = 0
    while kinds:
        chosen = [_deal(deck, kinds, dice)]
        for chance in _MORE:
            if dice.random() < chance:
                fitting = [name for name in deck if goes_with(kinds[name], [kinds[one] for one in chosen], nodes)]
                if fitting:
                    chosen.append(fitting[0])
                    deck.remove(fitting[0])
        acts = tuple(
            Act(name, dice.uniform(*_AFTER_S) if index else 0.0, dice.uniform(*_LASTS_S), dice.randrange(1 << 32))
            for index, name in enumerate(chosen)
        )
        yield Episode(number, acts, dice.uniform(*_HEALTH_S))
        number += 1


def one_by_one(seed: int, names: Sequence[str]) -> Iterator[Episode]:
    dice = random.Random(f"{seed}/script")
    for number, name in enumerate(names):
        yield Episode(number, (Act(name, 0.0, dice.uniform(*_ALONE_S), dice.randrange(1 << 32)),), 0.0)


def goes_with(kind: type[Fault], others: list[type[Fault]], nodes: int) -> bool:
    """Whether a fault may overlap others: each has its nodes, its wires, or its clocks to itself."""
    if others and any(one.alone for one in (kind, *others)):
        return False
    of_layer = [other for other in others if other.layer == kind.layer]
    if kind.layer != "nodes":
        return not of_layer
    return not of_layer or (
        kind.hurts != ALL
        and all(other.hurts != ALL for other in of_layer)
        and kind.hurts + sum(other.hurts for other in of_layer) <= nodes
    )


def must_go_on(acts: tuple[Act, ...], kinds: Mapping[str, type[Fault]], nodes: int) -> bool:
    """Whether a majority is well and hears each other all the time."""
    found = [kinds[act.name] for act in acts]
    if not all(kind.leaves_majority for kind in found):
        return False
    hurt = sum(kind.hurts if kind.hurts != ALL else 1 for kind in found if kind.layer == "nodes")
    # Nodes that the network leaves out are others than those that are hurt.
    return hurt <= (nodes - 1) // 2 and not (hurt and any(kind.layer == "network" for kind in found))


def _deal(deck: list[str], kinds: Mapping[str, type[Fault]], dice: random.Random) -> str:
    if not deck:
        deck.extend(kinds)
        dice.shuffle(deck)
    return deck.pop(0)
