"""Spans and metrics that leave the process, by OpenTelemetry. They are made by layers, if the program asks for them.

A program that has imported no OpenTelemetry imports none by this, nor the modules here that need it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from dspyer import clock
from dspyer.extend import Layer

OPENTELEMETRY: Final = "opentelemetry.context"
"""The module that a program which traces or counts has imported: both parts of OpenTelemetry need it."""

TRACES: Final = "opentelemetry.trace"


def layers_of_call(inside: Any) -> tuple[Layer, ...]:
    """The layers of a call, and of the runs inside of it; none if the program has set no provider.

    Args:
        inside: where the run is, if it is a part of another one, which has given it such layers then.
    """
    found: tuple[Layer, ...] = ()
    if inside is None and TRACES in sys.modules:
        from dspyer.tracing.spans import span_layers

        found = span_layers()
    # A worker gets no layers with a part of another run: it traces nothing of it, and counts all that it does.
    if (inside is None or inside.events is None) and clock.METRICS in sys.modules:
        from dspyer.tracing.metrics import metrics_here

        found += (*metrics_here(),)
    return found


def continued_trace(request: Any) -> AbstractContextManager[None]:
    """A block in which the trace of a resumed run is the current one: what DSPy traces around the run belongs to it."""
    if TRACES not in sys.modules:
        return nullcontext()
    from dspyer.tracing.spans import continued

    return continued(request)


def _count_time(what: str, store: object, seconds: float) -> None:
    from dspyer.tracing.metrics import add_store_time

    clock.timers[:] = [add_store_time]  # an import at each commit takes as long as to count it
    add_store_time(what, store, seconds)


clock.timers.append(_count_time)
