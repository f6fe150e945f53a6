"""Spark reading topics: how fast, beside Parquet files with the same rows, and how soon."""

from collections.abc import Callable
from functools import partial

from benchmarks.load import spark
from benchmarks.load.spark import SparkLoad
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.process import scratch
from benchmarks.works.publish import RATE

P50 = "p50_ms"
START = "start_s"

TOPIC = "bench"
MESSAGES = 2_000_000
MESSAGES_QUICK = 50_000
RUNS, RUNS_QUICK = 3, 1
BATCHES = 40

SOURCE = "Holdfast source"
SINK = "Holdfast sink"
PARQUET = "Spark's Parquet reader"


def _run(figure: str, function: Callable[[SparkLoad], float], runs: int, settings: Settings) -> Measured:
    messages = MESSAGES_QUICK if settings.quick or figure != RATE else MESSAGES
    with holdfast.serve(settings.directory, "none") as broker, scratch(settings.directory) as directory:
        load = SparkLoad(broker.http_port, TOPIC, messages, str(directory), RUNS_QUICK if settings.quick else runs)
        generate(settings, spark.fill, load)
        measured = generate(settings, function, load)
    return Measured({figure: measured}, f"{messages:,} messages of {spark.VALUE_BYTES} bytes, {spark.MASTER}")


def _source(figure: str, function: Callable[[SparkLoad], float], runs: int = RUNS) -> Contender:
    return Contender(SOURCE, holdfast.NAME, "over TCP", partial(_run, figure, function, runs))


COUNT = Work(
    name="spark-source-count",
    title="Spark counts a topic, and the same rows in Parquet files",
    figure=RATE,
    reference=PARQUET,
    contenders=(
        _source(RATE, spark.count_source),
        Contender(PARQUET, holdfast.NAME, "snappy", partial(_run, RATE, spark.count_parquet, RUNS)),
    ),
)
WRITE = Work(
    name="spark-source-parquet",
    title="Spark streams a topic to Parquet files, availableNow",
    figure=RATE,
    reference=SOURCE,
    contenders=(_source(RATE, spark.to_parquet),),
)
SINK_WORK = Work(
    name="spark-sink",
    title="Spark writes rows to a topic, exactly once",
    figure=RATE,
    reference=SINK,
    contenders=(Contender(SINK, holdfast.NAME, "over TCP", partial(_run, RATE, spark.to_topic, RUNS)),),
)
MICRO_BATCH = Work(
    name="spark-microbatch",
    title="A micro-batch of a stream, trigger to commit",
    figure=P50,
    reference=SOURCE,
    contenders=(_source(P50, spark.micro_batches, BATCHES),),
)
FIRST_ROW = Work(
    name="spark-start",
    title="From the start of a driver to its first row, with a class archive",
    figure=START,
    reference=SOURCE,
    contenders=(_source(START, spark.first_row, 1),),
)
