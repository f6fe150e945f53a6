"""A whole cluster in one process from one seed: nodes, disks, a network, clients, and everything that can go wrong.

There are no threads, files, sockets or clocks in here, only a heap of events in virtual time, so a run that breaks
an invariant can be run again, step by step, from its seed.

`world` is time and chance, `network` what nodes say to each other, `disk` what survives a crash, `state` what a
group's entries mean, `replica` the driver of one `Raft`, `node` what holds the replicas of one machine, `operator`
who changes members, `clients` who publishes and reads, `faults` what goes wrong, `invariants` what must hold
all the same, `run` one seed, and `mutants` the bugs that are planted to see whether all this finds them.
"""
