"""Record batches in: `POST /v1/topics/{topic}/partitions/{partition}/batches`, what bulk writers use."""

from __future__ import annotations

import asyncio

from holdfast.frontends.http import schema
from holdfast.frontends.http.exchange import BATCHES_TYPE, Request, Response, json_response
from holdfast.frontends.http.params import partition_number
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadBatch
from holdfast.wire.record_batch import split_batches


async def publish_batches(services: Services, request: Request) -> Response:
    request.require_type(BATCHES_TYPE)
    topic, partition = request.params[0], partition_number(request.params[1])
    batches = split_batches(await request.body())
    if not batches:
        raise BadBatch("the body is empty; send one or more record batches")
    futures = services.broker.publish_batches(topic, partition, batches)
    stored = await asyncio.shield(asyncio.gather(*futures))
    return json_response(
        schema.BatchResults(
            [
                schema.BatchResult(
                    partition=one.partition,
                    base_offset=one.base_offset,
                    count=one.count,
                    duplicates=one.duplicates,
                    offsets=None if one.offsets is None else list(one.offsets),
                )
                for one in stored
            ]
        )
    )
