"""A cluster, a pair or a plain pair in one process from one seed: nodes, disks, a network, clients, and faults.

There are no threads, files, sockets or clocks in here, only a heap of events in virtual time. A run that breaks an
invariant can be run again, step by step, from its seed.

`world` is time and chance. Of the cluster: `network` is what nodes say to each other, `disk` what survives a crash,
`state` what a group's entries mean, `replica` the driver of one `Raft`, `node` the replicas of one machine, `operator`
changes members, `clients` publish and read, `faults` is what goes wrong, `invariants` what must hold all the same,
`run` one seed. The pair and the plain pair have modules of the same names with `pair_` and `plain_` before them.

`simulators` lists the three, `many_seeds` runs them, `hunting` plants the bugs of `planted`, `pair_planted` and
`plain_planted` and sees whether a simulator finds them. `python -m simulation --help` is the command line of it all.
"""
