"""A cluster as a table: the same columns wherever one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table
    from rich.text import Text

    from holdfast.model.cluster import NodeDescription

COLUMNS: Final = ("node", "state", "role", "term", "leads", "lag", "text", "http", "peer")
_NUMBERS: Final = ("term", "leads", "lag", "pid", "protocol", "level")
_ROLES: Final = {"leader": "control leader", "trial": "without leader", "candidate": "without leader"}
_COLOURS: Final = {"up": "green", "starting": "yellow", "no answer": "yellow", "removed": "dim"}


def table(*more: str) -> Table:
    return table_of((*COLUMNS, *more))


def table_of(columns: Iterable[str]) -> Table:
    return output.table(*columns, numbers=_NUMBERS)


def role_text(node: NodeDescription) -> str:
    """What a node is in the control group, which decides on topics, cursors and nodes."""
    return "-" if node.role is None else _ROLES.get(node.role, node.role)


def facts(node: NodeDescription) -> dict[str, Any]:
    """What the columns show of a node, but for where it is; `None` where nobody knows."""
    return {
        "role": None if node.role is None else role_text(node),
        "term": node.term,
        "leads": None if node.partitions_led is None else f"{node.partitions_led} of {node.partitions}",
        "lag": node.lag,
    }


def cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def state_text(state: str) -> Text:
    return output.coloured(state, _COLOURS.get(state, "red"))
