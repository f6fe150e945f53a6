"""Bringing the spills of many brokers into one store: what is done on the driver and in each task, without Spark.

`backlog` takes the files over and gives them back; `lines` makes rows of them; `steps` stores rows that come in order;
`postgres_store` is a store that counts with them. `holdfast.pipelines.recover` puts Spark between `lines` and `steps`.

**Once.** The backlog is a set of files that does not change. Its messages, sorted, are one stream for each (queue,
partition), the same stream whenever it is made. The store keeps how many of a stream are done, in the transaction that
stores them, and moves that number only from where the storing task found it. So whoever is killed, doubled or late
goes on from there, and no message needs an id for it.
"""
