"""The calls of a sink to the brokers, from executors: standard library only, and through whatever happens to them.

Each call may be sent again: a stage makes a second piece that nobody names, a commit is recognised by its number.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from holdfast.model.errors import RemoteError
from holdfast.spark.broker_calls import RETRIED_STATUSES, BrokerConnection, Patience, Servers, refusal, why

_BATCHES: Final = "application/vnd.holdfast.batches"
_JSON: Final = "application/json"
_SOCKET_TIMEOUT_S: Final = 30.0


class SinkCalls:
    """One task's, or the driver's, connection to whichever broker answers."""

    def __init__(self, servers: Servers, broker_timeout_s: float, turn: int = 0) -> None:
        self._broker = BrokerConnection(servers, turn, _SOCKET_TIMEOUT_S)
        self._broker_timeout_s = broker_timeout_s

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; one that is missing is made where brokers do that."""
        path = f"/v1/topics/{quote(topic, safe='')}"
        try:
            described = self._ask("GET", path)
        except RemoteError as error:
            if error.code != "topic_not_found" or not self._ask("GET", "/v1/info")["auto_create"]:
                raise
            return self._made(topic)
        return len(described["partitions"])

    def _made(self, topic: str) -> int:
        try:
            return len(self._ask("POST", "/v1/topics", json.dumps({"topic": topic}).encode())["partitions"])
        except RemoteError as error:
            if error.code != "topic_exists":  # another task was faster
                raise
        return len(self._ask("GET", f"/v1/topics/{quote(topic, safe='')}")["partitions"])

    def stage(self, writer: str, number: int, topic: str, partition: int, batch: bytes, attempt: str) -> str | None:
        """The receipt; none where the number is committed already, and there is nothing left to do."""
        fields = {
            "topic": topic,
            "number": number,
            "partition": partition,
            "attempt": attempt,
            "unsummed": "true",
        }
        try:
            answer = self._ask("POST", f"/v1/transactions/{writer}/stage?{urlencode(fields)}", batch, _BATCHES)
        except RemoteError as error:
            if error.code != "transaction_committed":
                raise
            return None
        return str(answer["receipts"][0]["receipt"])

    def commit(self, writer: str, number: int, receipts: list[str]) -> bool:
        """Whether it was new."""
        body = json.dumps({"number": number, "receipts": receipts}).encode()
        return not self._ask("POST", f"/v1/transactions/{writer}/commit", body)["duplicate"]

    def abort(self, writer: str, reason: str) -> None:
        self._ask("POST", f"/v1/transactions/{writer}/abort", json.dumps({"reason": reason}).encode())

    def forget(self, writer: str) -> None:
        try:
            self._ask("DELETE", f"/v1/transactions/{writer}")
        except RemoteError as error:
            if error.code != "writer_not_found":
                raise

    def close(self) -> None:
        self._broker.close()

    def _ask(self, method: str, path: str, body: bytes | None = None, content_type: str = _JSON) -> Mapping[str, Any]:
        patience = Patience(self._broker_timeout_s)
        while True:
            try:
                response = self._broker.ask(method, path, body, {"Content-Type": content_type})
                text = response.read()
                if response.status < 400:
                    return json.loads(text) if text else {}
                error = refusal(text, response.status)
                if response.status not in RETRIED_STATUSES:
                    raise RemoteError(error["code"], f"[{error['code']}] {error['message']}", response.status)
                reason = f"says {error['code']}: {error['message']}"
            except (OSError, http.client.HTTPException) as failure:
                reason = why(failure)
            reason = f"{self._broker.address}: {reason}"
            self._broker.pass_on()
            patience.wait(f"{method} {path.partition('?')[0]}", reason)
