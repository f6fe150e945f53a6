"""`holdfast bench`: how fast a running broker is, seen from here.

Requests are built once and sent over plain sockets, replies are only counted, so that the broker and not
this tool is what is measured. The way of a run: `commands` → `run` → `pump`, `consume` or `latency` → `wires`,
and back as a `report`.
"""
