"""The loop sends the requests of `dspy.ReActV2`, byte for byte, and comes to the same outputs."""

from __future__ import annotations

import pytest

from tests.agents.parity import MODES, adapters, with_loop, with_react
from tests.agents.scripts import SCRIPTS, AgentScript

scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@adapters
@scripts
def test_requests_and_outputs_are_those_of_react(script: AgentScript, adapter: str) -> None:
    """All but the texts of errors, and the ids of a second run; sync and async."""
    reference = with_react(script, adapter, script.mode or "sync")
    assert (reference.outcomes[-1] is None) == script.error
    for mode in MODES[adapter]:
        talk = with_loop(script, adapter, mode)
        assert talk.requests == reference.requests, mode
        assert talk.outcomes == reference.outcomes, mode
