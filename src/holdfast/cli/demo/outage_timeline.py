"""A picture of the play with a database: acknowledgements over time, stored or buffered, and what was done when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.demo.outage_score import BIN_S
from holdfast.cli.demo.plot import AMBER, BLUE, GREEN, LEFT, RED, RIGHT, WIDTH, Plot, svg, text

if TYPE_CHECKING:
    from holdfast.cli.demo.outage_score import OutageScore


def drawn(score: OutageScore) -> str:
    """The whole picture as the text of an SVG file."""
    stored, buffered = score.per_bin(buffered=False), score.per_bin(buffered=True)
    plot = Plot(len(stored) * BIN_S, max([1.0, *stored, *buffered]))
    parts = [
        text(LEFT, 26, "A database is killed, and messages go on being taken", size=17, weight="bold"),
        text(LEFT, 48, _subtitle(score)),
        *_legend(),
        *plot.axes(),
        plot.area(stored, BIN_S, GREEN),
        plot.area(buffered, BIN_S, BLUE),
    ]
    parts += plot.marks([(mark.at_s, mark.label, RED if mark.is_loss else AMBER) for mark in score.marks])
    return svg(_subtitle(score), parts)


def _subtitle(score: OutageScore) -> str:
    verdict = score.verdict()
    return (
        f"{verdict['acknowledged']:,} messages acknowledged, {verdict['buffered']:,} of them without the database; "
        f"{verdict['lost']} lost, {verdict['duplicated']} duplicated, {verdict['out_of_order']} out of order"
    )


def _legend() -> list[str]:
    parts = []
    for place, (words, colour) in enumerate(
        (("acknowledged by the database", GREEN), ("buffered by the broker", BLUE))
    ):
        x = LEFT + 250 * place
        parts.append(f'<rect x="{x}" y="62" width="14" height="10" fill="{colour}" fill-opacity="0.55"/>')
        parts.append(text(x + 20, 72, words))
    return [*parts, text(WIDTH - RIGHT, 72, f"messages in {BIN_S * 1000:.0f} ms", anchor="end")]
