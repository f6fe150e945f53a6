"""Brokers without state over one PostgreSQL: it gives the offsets, and messages are rows that a person can query."""
