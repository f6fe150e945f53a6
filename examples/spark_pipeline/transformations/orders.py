"""Orders come from a topic; the large ones are kept as a table and told of in another topic."""

import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

SERVERS = os.environ.get("HOLDFAST_SERVERS", "127.0.0.1:8090")

spark = SparkSession.active()


@pipelines.temporary_view()
def orders() -> DataFrame:
    stream = spark.readStream.format("holdfast").options(servers=SERVERS, subscribe="pipeline-orders")
    return stream.options(startingOffsets="earliest", valueSchema="item STRING, count INT").load()


@pipelines.table
def large_orders() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("id", "timestamp", "value.*").where("count >= 4")


pipelines.create_sink("large_orders_topic", "holdfast", {"servers": SERVERS, "topic": "pipeline-large-orders"})


@pipelines.append_flow(target="large_orders_topic")
def large_orders_told() -> DataFrame:
    large = spark.readStream.table("large_orders")
    return large.selectExpr("item AS key", "to_json(struct(item, count)) AS value")
