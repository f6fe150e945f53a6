"""A picture of the play with a cluster: acknowledged and received over time, and where a node died and came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.demo.cluster_score import BIN_S
from holdfast.cli.demo.plot import AMBER, BLUE, GREEN, LEFT, RED, RIGHT, WIDTH, Plot, svg, text

if TYPE_CHECKING:
    from holdfast.cli.demo.cluster_score import ClusterScore


def drawn(score: ClusterScore) -> str:
    """The whole picture as the text of an SVG file."""
    acknowledged, received = score.acknowledged_per_bin(), score.received_per_bin()
    plot = Plot(len(acknowledged) * BIN_S, max([1.0, *acknowledged, *received]))
    parts = [
        text(LEFT, 26, "A leader is killed and comes back", size=17, weight="bold"),
        text(LEFT, 48, _subtitle(score)),
        *_legend(),
        *plot.axes(),
        plot.area(acknowledged, BIN_S, GREEN),
        plot.line(received, BIN_S, BLUE),
    ]
    marks = ((score.kill_s, f"{score.killed} killed", RED), (score.back_s, f"{score.killed} back", AMBER))
    parts += plot.marks([(at_s, label, colour) for at_s, label, colour in marks if at_s is not None])
    return svg(_subtitle(score), parts)


def _subtitle(score: ClusterScore) -> str:
    verdict = score.verdict()
    gap = f"longest gap {verdict['longest_gap_ms']} ms"
    return (
        f"{verdict['nodes']} nodes, {verdict['acknowledged']:,} messages acknowledged, {verdict['lost']} lost, "
        f"{verdict['duplicated']} duplicated, {verdict['out_of_order']} out of order; {gap}"
    )


def _legend() -> list[str]:
    return [
        f'<rect x="{LEFT}" y="62" width="14" height="10" fill="{GREEN}" fill-opacity="0.55"/>',
        text(LEFT + 20, 72, "acknowledged"),
        f'<path d="M{LEFT + 124} 67h18" stroke="{BLUE}" stroke-width="2"/>',
        text(LEFT + 148, 72, "received, mean of the readers"),
        text(WIDTH - RIGHT, 72, f"messages in {BIN_S * 1000:.0f} ms", anchor="end"),
    ]
