"""Load generators: one loop for throughput, one for latency, and what each protocol puts on the wire."""
