"""A primary or a backup whose partner may be any broker that speaks the packets of `wire/replication.py`."""
