"""The language model of the examples: offline by default, any other one by name.

python examples/quickstart.py                                # offline: learns only from the examples in its prompt
DSPYER_MODEL=openai/gpt-4o-mini python examples/quickstart.py
"""

from __future__ import annotations

import os

import dspy

from dspyer.testing import NearestLM


def language_model() -> dspy.LM:
    """The model that `DSPYER_MODEL` names (`provider/name`), without it one that needs no network."""
    name = os.environ.get("DSPYER_MODEL")
    return dspy.LM(name) if name else NearestLM()
