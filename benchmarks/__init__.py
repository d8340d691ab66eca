"""Measurements of this library beside other implementations of attention; `python -m benchmarks --help`."""
