"""`python -m bench`: runs the benchmarks and prints the table."""

from bench.run import main

raise SystemExit(main())
