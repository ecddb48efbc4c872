"""Decisions of a run as pure functions: what may start, how branches join, checks of graphs. No clock, thread, DSPy."""
