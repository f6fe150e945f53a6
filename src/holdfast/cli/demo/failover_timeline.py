"""A picture of the play with a pair: every message when it arrived, how long it took, and which broker it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.demo.plot import BLUE, GREEN, LEFT, RED, RIGHT, WIDTH, Plot, svg, text

if TYPE_CHECKING:
    from holdfast.cli.demo.failover_score import FailoverScore

_COLOURS: Final = {"primary": BLUE, "backup": GREEN}
# More dots than this are a black bar, and megabytes of it; of more, every so-manieth is drawn.
_DOTS_MAX: Final = 4000


def drawn(score: FailoverScore) -> str:
    """The whole picture as the text of an SVG file."""
    points = {role: score.delays_ms(role) for role in _COLOURS}
    every = [point for some in points.values() for point in some]
    plot = Plot(max([0.1, *(at_s for at_s, _ in every)]), max([1.0, *(delay_ms for _, delay_ms in every)]))
    parts = [
        text(LEFT, 26, "A primary is killed and its backup goes on", size=17, weight="bold"),
        text(LEFT, 48, _subtitle(score)),
        *_legend(),
        *plot.axes(),
    ]
    step = max(1, -(-len(every) // _DOTS_MAX))
    parts += [plot.dots(some[::step], _COLOURS[role]) for role, some in points.items() if some]
    if score.kill_s is not None:
        parts += plot.marks([(score.kill_s, "primary killed", RED)])
    return svg(_subtitle(score), parts)


def _subtitle(score: FailoverScore) -> str:
    verdict = score.verdict()
    return (
        f"{verdict['sent']:,} messages sent, {verdict['acknowledged']:,} acknowledged, "
        f"{verdict['received']:,} received, {verdict['lost']} lost, {verdict['duplicated']} duplicated, "
        f"{verdict['out_of_order']} out of order; longest gap {verdict['longest_gap_ms']} ms"
    )


def _legend() -> list[str]:
    parts = []
    for place, (role, colour) in enumerate(_COLOURS.items()):
        x = LEFT + 6 + 190 * place
        parts.append(f'<circle cx="{x}" cy="67" r="4" fill="{colour}"/>')
        parts.append(text(x + 12, 72, f"came from the {role}"))
    return [*parts, text(WIDTH - RIGHT, 72, "ms from sending to arrival", anchor="end")]
