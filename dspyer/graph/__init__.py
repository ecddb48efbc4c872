"""From the calls of `Graph` to a checked `GraphSpec`, and its text. Not here: checks of whole graphs (`scheduler`)."""
