# %% [markdown]
# # Alarms: from a topic to a topic, exactly once
# A notebook as a script: run it cell by cell in an editor, or whole: `python examples/spark_alarms.py`.
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

# %% Temperatures of some machines, in topics of this run's own
run = uuid.uuid4().hex[:8]
temperatures_topic, alarms_topic = f"example-temperatures-{run}", f"example-alarms-{run}"
with holdfast.connect_blocking(servers) as broker:
    for name in (temperatures_topic, alarms_topic):
        broker.create_topic(name, partitions=2)
    readings = [{"machine": f"m{number % 7}", "celsius": 20 + number % 90} for number in range(2_000)]
    broker.publish_many(temperatures_topic, readings)

# %% Whatever is too hot goes to another topic, under the machine's name as its key
spark = holdfast.spark.session("local[2]", config={"spark.sql.shuffle.partitions": 2})
directory = Path(tempfile.mkdtemp())


def tell_of_alarms() -> None:
    temperatures = spark.readStream.format("holdfast").options(servers=servers, subscribe=temperatures_topic)
    temperatures = temperatures.options(startingOffsets="earliest", valueSchema="machine STRING, celsius INT")
    alarms = temperatures.load().select("id", "value.*").where("celsius > 100")
    query = (
        alarms.selectExpr("machine AS key", "to_json(struct(machine, celsius, id AS reading)) AS value")
        .writeStream.format("holdfast")
        .options(servers=servers, topic=alarms_topic, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


tell_of_alarms()

# %% As if the driver had died before Spark noted that the batch is done: it is written again, and recognised
shutil.rmtree(directory / "checkpoint" / "commits")
tell_of_alarms()
alarms = spark.read.format("holdfast").options(servers=servers, subscribe=alarms_topic).load()
expected = sum(reading["celsius"] > 100 for reading in readings)
print(alarms.count(), "alarms of", expected, "hot readings, each once")

# %% Which machines they came from
print(sorted(row[0].decode() for row in alarms.select("key").distinct().collect()))

# %% Nothing stays behind
shutil.rmtree(directory)
with holdfast.connect_blocking(servers) as broker:
    for name in (temperatures_topic, alarms_topic):
        broker.delete_topic(name)
if own_broker is not None:
    spark.stop()
    own_broker.close()
