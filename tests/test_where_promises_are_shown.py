"""The table of which test shows which promise tells the truth. A test names the numbers that it shows, as in `S000-12`.

Five documents state what dspyer is to do: a strategy for state deltas (S000), immutable state (S001), agents steered by
state machines (S002), information flow between agents (S003), a scratchpad of collaborating agents (S004).
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = [
    ("S000", "1 to 11, 14 to 22, 24 to 26, 28, 30 to 33", "tests/schema/test_shared_state.py"),
    ("S000", "6, 12 to 14, 22, 23, 29", "tests/test_promises.py"),
    ("S000", "27", "tests/views/test_tokens.py"),
    ("S001", "11", "tests/runtime/test_crowds.py"),
    ("S001", "1 to 10, 12 to 17, 20", "tests/test_promises.py"),
    ("S001", "18, 19", "tests/test_state.py"),
    ("S002", "37", "tests/agents/test_agent_tuning.py"),
    ("S002", "1 to 37", "tests/agents/test_steering.py"),
    ("S002", "14 to 17, 19, 21, 31, 36", "tests/test_promises.py"),
    ("S002", "12, 13, 37", "tests/threads/test_thread_promises.py"),
    ("S003", "8, 15 to 20, 27", "tests/messages/test_messages_field.py"),
    ("S003", "22 to 26, 29", "tests/messages/test_templates.py"),
    ("S003", "21", "tests/messages/test_turns.py"),
    ("S003", "13", "tests/schema/test_shared_state.py"),
    ("S003", "1, 2, 7, 9 to 14, 17, 19, 23, 25, 28, 30", "tests/test_promises.py"),
    ("S003", "3 to 6, 30", "tests/views/test_run_values.py"),
    ("S004", "22", "tests/inspector/test_run_view.py"),
    ("S004", "18, 19, 29", "tests/live/test_live_conflicts.py"),
    ("S004", "13", "tests/live/test_live_isolation.py"),
    ("S004", "12", "tests/live/test_live_reading.py"),
    ("S004", "23, 24", "tests/live/test_posts.py"),
    ("S004", "5, 6", "tests/schema/test_limits.py"),
    ("S004", "1 to 4, 7 to 11, 14 to 17, 20, 21, 25 to 28", "tests/schema/test_shared_state.py"),
    ("S004", "6", "tests/schema/test_shared_state.py"),
    ("S004", "30", "tests/test_examples.py"),
    ("S004", "12, 16, 17", "tests/test_promises.py"),
]


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


def test_each_promise_is_in_the_test_that_the_table_names() -> None:
    promised: dict[str, set[int]] = {}
    for document, text, path in SHOWN:
        source = (ROOT / path).read_text()
        for number in numbers(text):
            assert re.search(rf"\b{document}-{number}\b", source), f"{path} does not name {document}-{number}"
            promised.setdefault(document, set()).add(number)
    last = {"S000": 33, "S001": 20, "S002": 37, "S003": 30, "S004": 30}
    assert promised == {document: set(range(1, number + 1)) for document, number in last.items()}
