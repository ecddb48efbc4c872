"""What makes a program a `dspy.Module` in full: traces, parameters, templates, source. Not here: nodes."""
