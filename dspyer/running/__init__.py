"""One run in the making: its session, the two drivers, and the crews of threads and tasks that do the work."""
