"""What a pipeline tells of its batches: figures, and reports in a topic."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.cli.pipeline.options import report_whole
from holdfast.pipelines import streams
from holdfast.pipelines.insight_findings import WINDOWS_MAX, fitting_window_ms

OFFSETS = {"orders": {"0": 7, "1": 4}}


def told(batch: int, **changed: Any) -> dict[str, Any]:
    """What Spark tells of a batch."""
    source = {
        "endOffset": '{"offsets": {"orders": {"0": 7, "1": 4}}, "created_ms": {}}',
        "latestOffset": '{"offsets": {"orders": {"0": 10, "1": 4}}, "created_ms": {}}',
    }
    durations = {"addBatch": 400, "triggerExecution": 500}
    return {"batchId": batch, "numInputRows": 11, "durationMs": durations, "sources": [source], **changed}


def test_figures_are_those_of_batches_that_were_not_told_of_before() -> None:
    idle = told(8, durationMs={"triggerExecution": 5})
    found = list(streams.batches_after(5, [told(5), told(6), told(6), told(7), idle]))
    assert [(each.batch, each.rows, each.rows_per_s, each.lag) for each in found] == [(6, 11, 22, 3), (7, 11, 22, 3)]
    assert found[0].offsets == OFFSETS
    assert (found[0].late, found[0].counts) == (0, {})
    foreign = {"endOffset": '{"logOffset": 3}', "latestOffset": "3"}
    [other] = streams.batches_after(None, [told(0, sources=[foreign])])
    assert (other.lag, other.offsets) == (0, {})


def test_figures_count_a_message_once_however_often_it_was_read() -> None:
    end = '{"offsets": {"orders": {"0": 7, "1": 4}}, "created_ms": {}, "began": {"orders": {"0": 2, "1": 0}}}'
    start = '{"offsets": {"orders": {"0": 5, "1": 4}}, "created_ms": {}}'
    for begins_at, rows in ((None, 9), (start, 2)):
        source = {"startOffset": begins_at, "endOffset": end, "latestOffset": end}
        [figures] = streams.batches_after(None, [told(0, numInputRows=33, sources=[source])])
        assert figures.rows == rows
        [figures] = streams.batches_after(None, [told(0, numInputRows=1, sources=[source])])
        assert figures.rows == 1, "some had expired"


def test_figures_have_what_a_query_counts_and_what_came_too_late() -> None:
    batches = [
        told(
            number,
            observedMetrics={"mine": {"made": 3, "dead": number}},
            stateOperators=[{"numRowsDroppedByWatermark": 2}],
        )
        for number in (1, 2)
    ]
    done = streams.StreamRun()
    for figures in streams.batches_after(None, batches):
        done.took(figures)
    assert (done.counts, done.late, done.batches) == ({"made": 6, "dead": 3}, 4, 2)


def test_pipeline_without_batches_reports_too(broker: holdfast.BlockingClient, servers: str, topic: str) -> None:
    report_whole({"server": servers}, "audit", {"lost": 1})
    report_whole({"server": servers, "report_topic": topic}, "audit", {"lost": 2})
    assert [message.json() for message in broker.read(topic, messages_max=10)] == [{"pipeline": "audit", "lost": 2}]
    # Whoever does not get it says so, and nothing else happens.
    report_whole({"server": servers, "report_topic": "no such topic"}, "audit", {"lost": 3})


@pytest.mark.parametrize(
    ("asked_ms", "span_ms", "expected_ms"),
    [
        (None, 0, 1000),
        (None, 119_999, 1000),
        (None, 120_000, 2000),
        (None, 3 * 365 * 86_400_000, 10 * 86_400_000),
        (1000, 100_000, 1000),
        (60_000, 30 * 86_400_000, 32 * 60_000),
    ],
)
def test_windows_are_never_too_many(asked_ms: int | None, span_ms: int, expected_ms: int) -> None:
    width = fitting_window_ms(asked_ms, 0, span_ms)
    assert width == expected_ms and span_ms // width + 2 <= WINDOWS_MAX
