"""`holdfast demo`: watch a broker die in the middle of its work and lose nothing.

`commands` → `play` (who does what when) → `process` (the broker) and `tally` (what became of every message),
shown by `view`.
"""
