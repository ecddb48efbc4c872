"""Benchmarks of dspyer and other libraries, measured in one run: `python -m bench --help`."""
