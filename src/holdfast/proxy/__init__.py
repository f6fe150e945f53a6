"""One address in front of several clusters: queues and topics are spread over them, and nothing is kept here."""

from holdfast.proxy.process import run
from holdfast.proxy.settings import Settings

__all__ = ["Settings", "run"]
