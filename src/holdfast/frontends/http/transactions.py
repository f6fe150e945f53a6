"""Transactions: `/v1/transactions/{writer}`, stage, commit, abort, and where a writer stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import BATCHES_TYPE, JSON_TYPE, Request, Response, json_response, no_content
from holdfast.frontends.http.params import FlagParam, OptionalIntParam, OptionalTextParam, TextParam
from holdfast.frontends.http.publish import messages_of
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadBatch, BadValue, Unavailable
from holdfast.transactions.service import Transactions
from holdfast.wire.record_batch import Buffer, split_batches, summed

TOPIC: Final = TextParam(name="topic", doc="the topic that gets the messages when they are committed", example="orders")
NUMBER: Final = OptionalIntParam(name="number", doc="the transaction's number; a writer's numbers rise", required=True)
PARTITION: Final = OptionalIntParam(name="partition", doc="the partition; record batches need one")
ATTEMPT: Final = OptionalTextParam(name="attempt", doc="a name for this try, for people", example="task-7.1")

UNSUMMED: Final = FlagParam(name="unsummed", doc="the record batches have no CRC32C: the broker writes it into them")

_abort_decoder: Final = msgspec.json.Decoder(schema.Abort)
_commit_decoder: Final = msgspec.json.Decoder(schema.Commit)


async def stage(services: Services, request: Request) -> Response:
    transactions = _transactions(services)
    writer = request.params[0]
    topic, number = TOPIC.of(request.query), NUMBER.of(request.query)
    if number is None:
        raise BadValue(f"the parameter number is missing: {NUMBER.doc}")
    partition, attempt = PARTITION.of(request.query), ATTEMPT.of(request.query) or ""
    if request.header(b"content-type").split(";")[0].strip().lower() == JSON_TYPE:
        request.require_type(JSON_TYPE)
        messages, named = messages_of(await services.body_of(request))
        receipts = await transactions.stage_messages(
            writer, number, topic, messages, named if partition is None else partition, attempt
        )
        return json_response(schema.StageReceipts(receipts))
    request.require_type(BATCHES_TYPE)
    if partition is None:
        raise BadValue("the parameter partition is missing: record batches are staged for one partition")
    batches: Sequence[Buffer] = split_batches(await services.body_of(request))
    if not batches:
        raise BadBatch("the body is empty; send one or more record batches")
    if UNSUMMED.of(request.query):
        batches = [summed(batch) for batch in batches]
    receipt = await transactions.stage_batches(writer, number, topic, partition, batches, attempt)
    return json_response(schema.StageReceipts([receipt]))


async def commit(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_commit_decoder, await services.body_of(request))
    transactions = _transactions(services)
    return json_response(await transactions.commit(request.params[0], wanted.number, wanted.receipts, wanted.contents))


async def abort(services: Services, request: Request) -> Response:
    body = await services.body_of(request)
    if body or request.header(b"content-type"):
        request.require_type(JSON_TYPE)
    # A reason is for people: who has none may send no body.
    wanted = decoded(_abort_decoder, body) if body else schema.Abort()
    await _transactions(services).abort(request.params[0], wanted.reason)
    return no_content()


async def describe_writer(services: Services, request: Request) -> Response:
    return json_response(await _transactions(services).writer(request.params[0]))


async def list_writers(services: Services, request: Request) -> Response:
    transactions = _transactions(services)
    # In this order: what is done behind the count is among the writers' numbers.
    under_way = await transactions.under_way()
    return json_response(schema.Writers(await transactions.writers(), under_way))


async def forget_writer(services: Services, request: Request) -> Response:
    await _transactions(services).forget(request.params[0])
    return no_content()


def _transactions(services: Services) -> Transactions:
    if services.transactions is None:
        raise Unavailable("this broker takes no transactions")
    return services.transactions
