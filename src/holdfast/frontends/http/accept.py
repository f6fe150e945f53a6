"""Which of several formats a client wants, by its `Accept` header."""

from __future__ import annotations

from collections.abc import Sequence


def prefers(accept: str, offers: Sequence[str]) -> str:
    """The offer that `accept` ranks highest; the first one where it ranks none, or several alike."""
    if not accept or accept == "*/*":
        return offers[0]
    ranges = [_range(part) for part in accept.split(",")]
    return max(offers, key=lambda offer: _quality(offer, ranges))


def _range(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return media, float(parameter[2:])
            except ValueError:
                return media, 0.0
    return media, 1.0


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The most exact range that covers the offer decides, as RFC 9110 says."""
    wildcard = f"{offer.split('/')[0]}/*"
    for wanted in (offer, wildcard, "*/*"):
        for media, quality in ranges:
            if media == wanted:
                return quality
    return 0.0
