"""What a demo sent and received, message by message, as record files for `holdfast pipeline audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.client.records import RecordFile, now_ms


class Ledger:
    """Kept in memory while the play goes on: a demo is short, and writing must not hold it up."""

    def __init__(self) -> None:
        self._sent: list[dict[str, Any]] = []
        self._received: list[dict[str, Any]] = []

    @property
    def counts(self) -> dict[str, int]:
        acknowledged = sum(line["acknowledged"] for line in self._sent)
        return {"sent": len(self._sent), "acknowledged": acknowledged, "received": len(self._received)}

    def send(self, topic: str, producer: object, sequence: int) -> dict[str, Any]:
        """Note a message that leaves now; `acknowledge` what is returned."""
        line = {
            "topic": topic,
            "id": f"{producer}/{sequence}",
            "sequence": sequence,
            "time_ms": now_ms(),
            "acknowledged": False,
        }
        self._sent.append(line)
        return line

    @staticmethod
    def acknowledge(line: dict[str, Any]) -> None:
        line["acknowledged"] = True

    def receive(
        self, topic: str, producer: object, sequence: int, *, broker: str, receiver: str, time_ms: int | None = None
    ) -> None:
        """Note a message that came now, or at that time."""
        self._received.append(
            {
                "topic": topic,
                "id": f"{producer}/{sequence}",
                "sequence": sequence,
                "time_ms": now_ms() if time_ms is None else time_ms,
                "broker": broker,
                "receiver": receiver,
            }
        )

    def write(self, directory: Path | None) -> None:
        """`sent.ndjson` and `received.ndjson`, in place of those of an earlier play."""
        if directory is None:
            return
        for name, lines in (("sent", self._sent), ("received", self._received)):
            path = directory / f"{name}.ndjson"
            path.unlink(missing_ok=True)
            with RecordFile(path) as file:
                file.write(lines)
