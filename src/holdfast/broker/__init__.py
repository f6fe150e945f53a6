"""The rules of the broker: what is admitted, where it goes, who gets it. No sockets, no files, no clock."""
