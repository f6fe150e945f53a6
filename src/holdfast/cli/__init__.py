"""The command line. One file for each group of commands; heavy parts are imported when they are used."""

from holdfast.cli.app import main

__all__ = ["main"]
