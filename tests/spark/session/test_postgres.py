"""Reading a PostgreSQL store, which keeps rows: where a batch begins and ends is another question each time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession
from testkit.processes import BrokerProcess

import holdfast

BATCHES, BATCH_MESSAGES = 7, 1000


def test_each_message_of_a_postgres_store_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """Older batches come from the database and the newest ones from memory, cut differently, in answers of 4 MiB."""
    with BrokerProcess(tmp_path / "data", "--store", "postgres") as running:
        address = f"127.0.0.1:{running.http_address[1]}"
        with holdfast.connect_blocking(f"holdfast://{address}") as broker:
            for _ in range(BATCHES):
                broker.publish_many("orders", [b"x" * 900] * BATCH_MESSAGES)
        reader = spark.read.format("holdfast").options(servers=address, subscribe="orders").schema("offset bigint")
        for tasks in (1, 3):
            found = Counter(row.offset for row in reader.option("minPartitions", tasks).load().collect())
            assert found == Counter(range(BATCHES * BATCH_MESSAGES))
