"""The calls of a sink to the brokers, from executors: standard library only, and through whatever happens to them.

Each call may be sent again: a stage makes a second piece that nobody names, a commit is recognised by its number.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from holdfast.model.errors import RemoteError
from holdfast.spark.batch_contents import Contents, contents_from_json
from holdfast.spark.broker_calls import BATCHES_TYPE, BrokerConnection, Patience, Servers, is_passing, refusal, why

_JSON: Final = "application/json"
_SOCKET_TIMEOUT_S: Final = 30.0


class Committed(NamedTuple):
    """What a broker says of a commit: whether it knew the number, and the last number of the writer.

    A commit that was sent again may be the one that the broker knew. `contents` is what the last number holds.
    """

    is_duplicate: bool
    last_number: int
    was_sent_again: bool
    contents: Contents | None = None


class Standing(NamedTuple):
    """The last number that a writer has committed, and what that holds."""

    last_number: int
    contents: Contents | None


class SinkCalls:
    """One task's, or the driver's, connection to whichever broker answers."""

    def __init__(self, servers: Servers, broker_timeout_s: float, turn: int = 0) -> None:
        self._broker = BrokerConnection(servers, turn, _SOCKET_TIMEOUT_S)
        self._broker_timeout_s = broker_timeout_s
        # Of the last call.
        self._tries = 0

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; one that is missing is made where brokers do that."""
        path = f"/v1/topics/{quote(topic, safe='')}"
        try:
            described = self._ask("GET", path, needs="partitions")
        except RemoteError as error:
            if error.code != "topic_not_found" or not self._ask("GET", "/v1/info", needs="auto_create")["auto_create"]:
                raise
            return self._made(topic)
        return len(described["partitions"])

    def _made(self, topic: str) -> int:
        try:
            body = json.dumps({"topic": topic}).encode()
            return len(self._ask("POST", "/v1/topics", body, needs="partitions")["partitions"])
        except RemoteError as error:
            if error.code != "topic_exists":  # another task was faster
                raise
        return len(self._ask("GET", f"/v1/topics/{quote(topic, safe='')}", needs="partitions")["partitions"])

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
            answer = self._ask(
                "POST", f"/v1/transactions/{writer}/stage?{urlencode(fields)}", batch, BATCHES_TYPE, needs="receipts"
            )
        except RemoteError as error:
            if error.code != "transaction_committed":
                raise
            return None
        return str(answer["receipts"][0]["receipt"])

    def commit(self, writer: str, number: int, receipts: list[str], contents: Contents | None = None) -> Committed:
        wanted = {"number": number, "receipts": receipts}
        told = {} if contents is None else {"contents": contents.as_json()}
        path = f"/v1/transactions/{writer}/commit"
        try:
            answer = self._ask("POST", path, json.dumps({**wanted, **told}).encode(), needs="last_number")
        except RemoteError as error:
            if error.code != "bad_value" or "contents" not in str(error):
                raise
            # A broker of an older version, which keeps nothing to compare.
            answer = self._ask("POST", path, json.dumps(wanted).encode(), needs="last_number")
        return Committed(
            bool(answer["duplicate"]),
            int(answer["last_number"]),
            self._tries > 1,
            contents_from_json(answer.get("contents")),
        )

    def last_number(self, writer: str) -> int | None:
        """The last number that a writer has committed, if it has."""
        standing = self.standing(writer)
        return None if standing is None else standing.last_number

    def standing(self, writer: str) -> Standing | None:
        """Where a writer stands, if it has committed anything."""
        try:
            answer = self._ask("GET", f"/v1/transactions/{writer}", needs="last_number")
        except RemoteError as error:
            if error.code != "writer_not_found":
                raise
            return None
        last = answer["last_number"]
        return None if last is None else Standing(int(last), contents_from_json(answer.get("contents")))

    def cursor(self, topic: str, name: str) -> dict[str, int] | None:
        """Where a cursor stands, by partition; none where it is not there."""
        try:
            path = f"/v1/topics/{quote(topic, safe='')}/cursors/{quote(name, safe='')}"
            partitions = self._ask("GET", path, needs="partitions")["partitions"]
        except RemoteError:
            return None
        return {str(each["partition"]): int(each["offset"]) for each in partitions}

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

    def _ask(
        self, method: str, path: str, body: bytes | None = None, content_type: str = _JSON, *, needs: str | None = None
    ) -> Mapping[str, Any]:
        """The answer, which has what it `needs`: something else that listens at an address may say yes to all."""
        patience = Patience(self._broker_timeout_s)
        self._tries = 0
        while True:
            self._tries += 1
            try:
                response = self._broker.ask(method, path, body, {"Content-Type": content_type})
                text = response.read()
                if response.status < 400:
                    if needs is None:
                        return {}
                    answer = _object(text)
                    if needs in answer:
                        return answer
                    reason = f"answered {response.status}, and not as a broker does: {text[:200]!r}"
                else:
                    error = refusal(text, response.status)
                    if not is_passing(response.status, error["code"]):
                        raise RemoteError(error["code"], f"[{error['code']}] {error['message']}", response.status)
                    reason = f"says {error['code']}: {error['message']}"
            except (OSError, http.client.HTTPException) as failure:
                reason = why(failure)
            reason = f"{self._broker.address}: {reason}"
            self._broker.pass_on()
            patience.wait(f"{method} {path.partition('?')[0]}", reason)


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; of anything else, one that has nothing."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
