"""The cluster backend: partitions on several nodes, which agree on every entry before it is acknowledged."""
