"""The ways to a broker that can be measured."""

from __future__ import annotations

import enum


class Via(enum.StrEnum):
    """`text` lines over TCP, JSON messages over `http`, or record `batches` over HTTP, as bulk writers send them."""

    TEXT = "text"
    HTTP = "http"
    BATCHES = "batches"
