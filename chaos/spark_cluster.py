"""The Spark cluster of `testkit`, under the name that the campaigns import."""

from testkit.spark import SparkCluster, bare_python

__all__ = ["SparkCluster", "bare_python"]
