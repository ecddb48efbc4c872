"""The loop sends the requests of `dspy.ReActV2`, byte for byte, and comes to the same outputs."""

from __future__ import annotations

import pytest

from tests.agents.parity import adapters, modes, with_loop, with_react
from tests.agents.scripts import SCRIPTS, AgentScript

pytest.importorskip("dspyer.agents")
scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@modes
@adapters
@scripts
def test_requests_and_outputs_are_those_of_react(script: AgentScript, adapter: str, mode: str) -> None:
    """All but the texts of errors, and the ids of a second run."""
    reference = with_react(script, adapter, mode if script.mode is None else script.mode)
    assert (reference.outcomes[-1] is None) == script.error
    talk = with_loop(script, adapter, mode)
    assert talk.requests == reference.requests
    assert talk.outcomes == reference.outcomes
