"""What people look at: reports, SVG, token tables, redaction. Functions of values, never of a `Run`."""
