"""What makes a program a `dspy.Module`: traces, parameters, signatures, prompt templates and source text."""
