"""Partitions on disk: segment files, their indexes, recovery after a crash, and syncing."""
