"""The language model of the examples: an offline one by default, or any other one by name.

python examples/quickstart.py                                # offline: learns only from the examples in its prompt
DSPYER_MODEL=openai/gpt-4o-mini python examples/quickstart.py
"""

from __future__ import annotations

import os

import dspy

from dspyer.testing import NearestLM


def language_model() -> dspy.LM:
    """The model named by `DSPYER_MODEL` (`provider/name`), or else one that needs no network."""
    name = os.environ.get("DSPYER_MODEL")
    return dspy.LM(name) if name else NearestLM()
