"""How the broker's log lines look: for people on a terminal, or JSON for machines."""

from __future__ import annotations

import logging
import sys

import structlog

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    # Nothing of ours is logged as that: for commands whose errors end them.
    "critical": logging.CRITICAL,
}


def configure(level: str, form: str) -> None:
    """Send log lines of this level and above to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level if form == "json" else structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
