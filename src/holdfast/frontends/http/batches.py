"""Record batches in: `POST /v1/topics/{topic}/partitions/{partition}/batches`, what bulk writers use."""

from __future__ import annotations

from holdfast.frontends.http.exchange import BATCHES_TYPE, Request, Response, json_response
from holdfast.frontends.http.params import partition_number
from holdfast.frontends.http.publish import finished
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadBatch
from holdfast.wire.record_batch import split_batches


async def publish_batches(services: Services, request: Request) -> Response:
    request.require_type(BATCHES_TYPE)
    topic, partition = request.params[0], partition_number(request.params[1])
    batches = split_batches(await request.body())
    if not batches:
        raise BadBatch("the body is empty; send one or more record batches")
    stored = await finished(services.broker.publish_batches(topic, partition, batches))
    # The broker's own results have the very fields of `schema.BatchResult`.
    return json_response({"results": stored})
