"""The proof with real processes: brokers under load, faults from a seed, and a checker that believes nothing.

`python -m chaos --help` lists the campaigns; each is a module of `campaigns`. What they are made of is in `testkit`:
clusters on disks and networks that can be broken, workloads, faults (`nemesis`), the history of what clients
were told, and the checker. `run` puts one run of a cluster together, `report` says what was found.
"""
