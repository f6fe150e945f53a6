"""`holdfast demo`: watch a broker, a cluster's leader or a pair's primary die in the middle of its work.

`commands` → `play` (who does what when) → `process` (the broker) and `tally` (what became of every message),
shown by `view`. For a cluster: `cluster_play` → `cluster_score`, shown by `cluster_view`, drawn by `timeline`. For a
pair: `failover_play` → `pair_process` and `failover_score`, shown by `failover_view`, drawn by `failover_timeline`.
"""
