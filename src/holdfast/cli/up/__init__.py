"""`holdfast up`: a cluster on this machine in one command.

`command` → `supervisor` (keeps the nodes running, knows how they are) → `view` (a live table, or lines).
"""
