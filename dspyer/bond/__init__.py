"""What makes a program a `dspy.Module` in full: signatures, source, copies, parameters, traces."""
