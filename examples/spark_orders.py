# %% [markdown]
# # Orders: from a topic to a table, and a running total
# A notebook as a script: run it cell by cell in an editor, or whole: `python examples/spark_orders.py`.
# It needs `.venv/bin/pip install -e '.[spark]'` in the directory of the sources. With an address as its argument it
# uses that broker, else it starts one.

# %%
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

import holdfast
import holdfast.spark
from holdfast.testing import LocalCluster

servers = sys.argv[1] if len(sys.argv) > 1 else ""
own_broker = None
if not servers:
    own_broker = LocalCluster(nodes=1)
    own_broker.open()
    servers = own_broker.url

# %% Some orders, in a topic of this run's own
topic = f"example-orders-{uuid.uuid4().hex[:8]}"
with holdfast.connect_blocking(servers) as broker:
    broker.create_topic(topic, partitions=2)
    items = ("tea", "coffee", "cake")
    broker.publish_many(topic, [{"item": items[number % 3], "count": number % 5 + 1} for number in range(3_000)])

# %% The topic as a table
spark = holdfast.spark.session("local[2]", config={"spark.sql.shuffle.partitions": 2})
source = {"servers": servers, "subscribe": topic, "valueSchema": "item STRING, count INT"}
orders = spark.read.format("holdfast").options(**source).load()
orders.selectExpr("partition", "offset", "value.item", "value.count").orderBy("partition", "offset").show(5)

# %% A stream into files: every order once, however often this is run
directory = Path(tempfile.mkdtemp())
stream = spark.readStream.format("holdfast").options(**source, startingOffsets="earliest", groupId="example").load()
query = (
    stream.select("partition", "offset", "value.*")
    .writeStream.format("parquet")
    .option("path", str(directory / "orders"))
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% The total by item, and how far the stream is
totals = spark.read.parquet(str(directory / "orders")).groupBy("item").sum("count").orderBy("item").collect()
print([tuple(total) for total in totals])
with holdfast.connect_blocking(servers) as broker:
    print("the cursor is", broker.cursor(topic, "example").lag, "messages behind")

# %% Nothing stays behind
shutil.rmtree(directory)
with holdfast.connect_blocking(servers) as broker:
    broker.delete_topic(topic)
if own_broker is not None:
    spark.stop()
    own_broker.close()
