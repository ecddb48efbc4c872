"""Things that people look at: reports, SVG, `progress()`, token tables. Functions of values, never of a `Run`."""
