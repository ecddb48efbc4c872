"""A scripted LM that records every request byte for byte, as the adapter gives it to the LM."""

from __future__ import annotations

import json
import threading
from typing import Any

from dspyer.testing import ScriptedLM


class RecordingLM(ScriptedLM):
    """A `ScriptedLM` whose `requests` are texts: messages, tools, tool choice, sampling and rollout ids as JSON."""

    def __init__(self, script: Any, **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.requests: list[str] = []
        self._recording = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordingLM:
        return self  # all copies record in one list

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        self._record(messages, kwargs)
        return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        self._record(messages, kwargs)
        return await super().acall(prompt, messages=messages, **kwargs)

    def _record(self, messages: Any, kwargs: dict[str, Any]) -> None:
        request = json.dumps({"messages": messages, **self.kwargs, **kwargs}, default=repr, indent=1)
        with self._recording:
            self.requests.append(request)
