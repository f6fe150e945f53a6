"""What tests and chaos share: processes, clients, faults, disks, checks. Not shipped."""
