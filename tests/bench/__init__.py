"""Tests of the benchmark suite: its arithmetic, its honesty, and one quick run."""
