"""The proof with real processes: a cluster under load, faults from a seed, and a checker that believes nothing.

`run` puts one run together: `cluster` (nodes on disks and networks that can be broken), `workload` (who publishes,
reads and moves cursors, and writes down what it was told), `faults` (what goes wrong), and at last `checker`, which
holds everything that anybody was told against what the nodes serve. `python -m chaos --help` says how to use it.
"""
