"""`holdfast demo`: watch a broker, or the leader of a cluster, die in the middle of its work and lose nothing.

`commands` → `play` (who does what when) → `process` (the broker) and `tally` (what became of every message),
shown by `view`. For a cluster: `cluster_play` → `cluster_score`, shown by `cluster_view`, drawn by `timeline`.
"""
