"""The decisions of a run as pure functions of values: what may start, how branches join. No clock, thread or DSPy."""
