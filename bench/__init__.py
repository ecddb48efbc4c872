"""Benchmarks of dspyer beside other libraries, side by side in one run: `python -m bench --help`."""
