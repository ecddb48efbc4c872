"""From the calls of a `Graph` to a checked, frozen blueprint."""
