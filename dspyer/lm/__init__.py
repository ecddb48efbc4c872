"""What makes a program a `dspy.Module`: traces, token usage, parameters, signatures, prompts and demos, source text."""
