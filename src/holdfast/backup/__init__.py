"""Backups: what a running cluster holds, in one directory of files, and a new broker made of that."""
