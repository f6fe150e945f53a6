"""Garbage for every parser: `python -m fuzz --seconds 60 [--seed N] [--only NAME]`.

Each target takes bytes and may only return or raise `HoldfastError`; anything else is a find. Inputs are
mutations of good examples, drawn from a seed that is printed, so that a find can be had again. Where atheris
is installed, coverage guides them (`fuzz.guided`).
"""
