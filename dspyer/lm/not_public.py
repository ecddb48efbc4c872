"""All names of DSPy that it neither exports at its top level nor documents as settings: the one place that knows them.

A release of DSPy may drop each of them without a word. Then the import of this module fails, in one sentence that names
what is missing, and `tests/dspy_contract/test_not_public.py` says what has changed: it tests each name alone.
"""

from __future__ import annotations

from typing import Any, Final

import dspy

from dspyer.errors import DSPyVersionError

TESTED: Final = ">=3.4.1,<3.5"
"""The versions of DSPy that dspyer is tested with, as `pyproject.toml` asks for them."""


def _lacks(what: str) -> DSPyVersionError:
    return DSPyVersionError(
        f"this version of dspyer does not work with DSPy {dspy.__version__} ({what}): it is tested with DSPy {TESTED}"
    )


try:
    from dspy.adapters.chat_adapter import field_header_pattern as field_header_pattern  # begins a field of a response
    from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER as CUSTOM_TYPE_END_IDENTIFIER  # after an image
    from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER as CUSTOM_TYPE_START_IDENTIFIER  # before it
    from dspy.adapters.types.decision import Choice as Choice  # a type of output that an LM chooses, and streams not
    from dspy.adapters.types.decision import Noul as Noul  # the same, of yes, no and unknown
    from dspy.adapters.types.decision import Score as Score  # the same, of numbers
    from dspy.adapters.utils import serialize_for_json as serialize_for_json  # a value as a prompt shows it
    from dspy.clients._deprecation import _adapter_call as _adapter_call  # which LM an adapter's messages are for
    from dspy.clients._deprecation import adapter_message_call as adapter_message_call  # says that it is another LM
    from dspy.clients.backend_selection import CLIENT_KEYS as CLIENT_KEYS  # settings of an LM that concern its client
    from dspy.clients.base_lm import LM_CLASS_STATE_KEY as LM_CLASS_STATE_KEY  # names the class of a saved LM
    from dspy.clients.call_context import _adapter_calls as _adapter_calls  # whether each call here has shown a token
    from dspy.clients.call_context import adapter_fallback_scope as adapter_fallback_scope  # adds one to them
    from dspy.clients.capabilities import resolve as resolve  # the provider and model behind the name of an LM
    from dspy.clients.execution import _cached as _cached  # the response that a cache has for a call, or None
    from dspy.clients.execution import prepare as prepare  # the call that an LM will make, with its key in the cache
    from dspy.clients.lm15_boundary import history_messages as history_messages  # a request as messages, as dicts
    from dspy.clients.model_metadata import model_info as model_info  # what is known of a model
    from dspy.clients.model_metadata import rate as rate  # a price of it
    from dspy.dsp.utils.settings import DEFAULT_CONFIG as DEFAULT_CONFIG  # the settings that are DSPy's own
    from dspy.lm15 import LM15Error as LM15Error  # a model that only LiteLLM can route
    from dspy.lm15 import Message as Message  # a turn of a request or response
    from dspy.lm15 import Request as Request  # what an engine gets
    from dspy.lm15 import Response as Response  # what an engine gives
    from dspy.lm15 import StreamDeltaEvent as StreamDeltaEvent  # a part of a streamed response
    from dspy.lm15 import StreamEndEvent as StreamEndEvent  # its end, with the usage
    from dspy.lm15 import StreamStartEvent as StreamStartEvent  # its beginning
    from dspy.lm15 import TextDelta as TextDelta  # a text in such a part
    from dspy.lm15 import TextPart as TextPart  # a text in a message
    from dspy.lm15 import ToolCallDelta as ToolCallDelta  # a tool call in such a part
    from dspy.lm15 import ToolCallPart as ToolCallPart  # a tool call in a message
    from dspy.lm15 import Usage as Usage  # the tokens of a response
    from dspy.predict.parameter import Parameter as Parameter  # what `named_parameters()` of a module finds
    from dspy.teleprompt.bootstrap_trace import FailedPrediction as FailedPrediction  # in a trace: it did not parse
    from dspy.utils.caching import default_cache_dir as default_cache_dir  # the folder of DSPy's cache on disk
    from dspy.utils.callback import BaseCallback as BaseCallback  # documented, but in no public module
    from dspy.utils.hasher import Hasher as Hasher  # seeds the choice between demos of one predictor
    from dspy.utils.usage_tracker import UsageTracker as UsageTracker  # gets the usage of what no cache has served
except ImportError as error:
    raise _lacks(str(error).partition(" (")[0]) from error

# --- settings, for `dspy.settings.get(...)` and `dspy.context(**{...: ...})`

CALLERS: Final = "caller_modules"  # the modules around a call, in whose histories DSPy puts an entry
TRACKER: Final = "usage_tracker"  # the `UsageTracker` of the block; `dspy.track_usage()` sets it
SEND_STREAM: Final = "send_stream"  # where the chunks of a streamed response go
LISTENERS: Final = "stream_listeners"  # those of `dspy.streamify`; with some, only their predictors are streamed
TRACE: Final = "trace"  # the list that gets each call of a predictor
TRACE_SIZE: Final = "max_trace_size"  # how many of them it keeps
HISTORY_OFF: Final = "disable_history"  # whether LMs and modules get no entries of calls
HISTORY_SIZE: Final = "max_history_size"  # how many entries they keep

# --- attributes, for `getattr` and `vars`

COMPILED: Final = "_compiled"  # of a module: an optimizer has tuned it, others leave it alone
INPUT_KEYS: Final = "_input_keys"  # of an example: the names of its inputs; None before `with_inputs`
ENGINE: Final = "_engine_spec"  # of an LM: its engine, by name or as an object
ENGINES: Final = (ENGINE, "_async_engine_spec", "_providers", "use_developer_role")  # what routes the requests of an LM
DECIDES: Final = "supports_decision_requests"  # of an LM that is no `dspy.BaseLM`, and chooses among options
CACHE_FOLDER: Final = "disk_cache_dir"  # of the disk cache that `dspy.configure_cache` has made
METRIC: Final = "metric_fn"  # of a `dspy.GEPA`: the metric that its `compile` calls
CALLED: Final = "instance"  # in the frame that runs callbacks: what is called

# --- methods that dspyer calls, or its classes override

BOOTSTRAP: Final = "_bootstrap"  # of `dspy.BootstrapFewShot`: makes all demonstrations
VALIDATE_ARGUMENTS: Final = "_validate_and_parse_args"  # of `dspy.Tool`: what a call gets

COUNT_CALLS: Final = "increment_evals"  # of the state that gepa gives a selector: metric calls of the budget


def _check() -> None:
    """Raise the error of this module if settings, attributes, methods or names in a function are missing."""
    for name in (CALLERS, TRACKER, SEND_STREAM, LISTENERS, TRACE, TRACE_SIZE, HISTORY_OFF, HISTORY_SIZE):
        if name not in DEFAULT_CONFIG:
            raise _lacks(f"it has no setting {name!r}")
    owners: list[tuple[Any, Any, str]] = [
        (dspy.Module, dspy.Module(), COMPILED),
        (dspy.Example, dspy.Example(), INPUT_KEYS),
        (dspy.BootstrapFewShot, dspy.BootstrapFewShot, BOOTSTRAP),
        (dspy.Tool, dspy.Tool, VALIDATE_ARGUMENTS),
    ]
    for owner, one, name in owners:
        if not hasattr(one, name):
            raise _lacks(f"dspy.{owner.__name__} has no {name!r}")


_check()
