"""From `program(...)` to a `Run`: session, drivers, workers, streams. Not here: decisions (`scheduler`)."""
