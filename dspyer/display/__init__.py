"""What people look at: reports, timelines, SVG, token tables, redaction. Functions of values, never of a `Run`."""
