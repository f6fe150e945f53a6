"""Where partitions live and how they survive. Each backend keeps the promises of `broker/backend.py`."""
