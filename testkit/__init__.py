"""What tests, chaos, simulation and benchmarks share: processes, clients, faults, disks, checks. Not shipped."""
