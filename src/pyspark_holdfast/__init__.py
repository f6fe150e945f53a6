"""Spark looks for modules called `pyspark_*`: this one makes `format("holdfast")` work without registering it."""

from holdfast.spark.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
