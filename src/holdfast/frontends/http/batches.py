"""Record batches in: `POST /v1/topics/{topic}/partitions/{partition}/batches`, what bulk writers use."""

from __future__ import annotations

from holdfast.frontends.http import schema
from holdfast.frontends.http.exchange import BATCHES_TYPE, Request, Response, json_response
from holdfast.frontends.http.params import partition_number
from holdfast.frontends.http.publish import finished
from holdfast.frontends.http.services import Services
from holdfast.model.errors import BadBatch
from holdfast.model.messages import BatchPublished
from holdfast.wire.record_batch import header, split_batches


async def publish_batches(services: Services, request: Request) -> Response:
    request.require_type(BATCHES_TYPE)
    topic, partition = request.params[0], partition_number(request.params[1])
    batches = split_batches(await services.body_of(request))
    if not batches:
        raise BadBatch("the body is empty; send one or more record batches")
    if services.on_publish is not None:
        services.on_publish(topic, sum(header(batch).record_count for batch in batches))
    stored = await finished(services.broker.publish_large_batches(topic, partition, batches))
    if any(each.buffered for each in stored):
        return json_response({"results": list(map(_buffered_result, stored))})
    # The broker's own results have the very fields of `schema.BatchResult`.
    return json_response({"results": stored})


def _buffered_result(published: BatchPublished) -> schema.BatchResult:
    return schema.BatchResult(
        partition=published.partition,
        base_offset=published.base_offset,
        count=published.count,
        duplicates=published.duplicates,
        offsets=None if published.offsets is None else list(published.offsets),
        buffered=published.buffered,
    )
