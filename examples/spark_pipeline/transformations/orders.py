"""Orders come from a topic; the large ones are told of in another topic.

There are views and a sink, and no table: Spark's own catalog forgets the tables of a run when it ends, but not their
files, and the next run would fail at them. With a catalog that remembers, `@pipelines.table` keeps one as well.
"""

import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

SERVERS = os.environ.get("HOLDFAST_SERVER", "127.0.0.1:8090")

spark = SparkSession.active()


@pipelines.temporary_view()
def orders() -> DataFrame:
    stream = spark.readStream.format("holdfast").options(servers=SERVERS, subscribe="pipeline-orders")
    return stream.options(startingOffsets="earliest", valueSchema="item STRING, count INT").load()


@pipelines.temporary_view()
def large_orders() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("id", "timestamp", "value.*").where("count >= 4")


pipelines.create_sink("large_orders_topic", "holdfast", {"servers": SERVERS, "topic": "pipeline-large-orders"})


@pipelines.append_flow(target="large_orders_topic")
def large_orders_told() -> DataFrame:
    large = spark.readStream.table("large_orders")
    return large.selectExpr("item AS key", "to_json(struct(item, count)) AS value")
