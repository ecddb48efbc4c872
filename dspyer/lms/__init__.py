"""Language models made of others: `reliable` retries requests, keeps to rate limits and falls back to another LM.

Nothing here knows of graphs: the result is a `dspy.LM`, for any DSPy program.
"""

from dspyer.lms.reliable_lm import reliable

__all__ = ["reliable"]
