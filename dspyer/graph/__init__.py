"""From the calls of `Graph` to a checked `GraphSpec`: builder, checks, text. Not here: running it (`runtime`)."""
