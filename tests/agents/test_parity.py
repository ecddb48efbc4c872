"""The loop sends the requests of `dspy.ReActV2`, byte for byte, and comes to the same outputs."""

from __future__ import annotations

import pytest

from tests.agents.parity import ADAPTERS, with_loop, with_react
from tests.agents.scripts import GARBLED, SCRIPTS, AgentScript
from tests.budget import deep


def ways_of(number: int) -> list[tuple[str, str]]:
    """Adapters and modes: for every script one with native calls and one without, one sync and one async.

    All adapters for a response that does not parse, after which they differ.
    """
    if deep or GARBLED in SCRIPTS[number].answers:
        return [(adapter, ("sync", "async")[(number + at) % 2]) for at, adapter in enumerate(ADAPTERS)]
    texts, native = (("chat", "json, native"), ("json", "chat, native"))[number % 2]
    return [(texts, "sync"), (native, "async")] if number % 4 < 2 else [(texts, "async"), (native, "sync")]


@pytest.mark.parametrize("number", range(len(SCRIPTS)), ids=[script.name for script in SCRIPTS])
def test_requests_and_outputs_are_those_of_react(number: int) -> None:
    """All but the texts of errors, and the ids of a second run."""
    script: AgentScript = SCRIPTS[number]
    for adapter, mode in ways_of(number):
        reference = with_react(script, adapter, script.mode or "sync")
        assert (reference.outcomes[-1] is None) == script.error
        assert with_loop(script, adapter, mode) == reference, (adapter, mode)
