"""Programs as `dspy.Module`s: traces, token usage, parameters, signatures, prompts and demos, source text."""
