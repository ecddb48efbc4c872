"""What an LM call has cost: by given prices, by DSPy's figure, or by the prices that DSPy knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dspyer.dspy_module.not_public import LM15Error, model_info, rate, resolve

Prices = Mapping[str, tuple[float, float]]
"""US dollars per million tokens of prompts and of responses by the name of the model, as in `Budget(prices=)`."""


class TokenCounts(NamedTuple):
    """The tokens of one response: of its prompt, of the response, and of both."""

    prompt: int
    response: int
    total: int


def token_counts(usage: Mapping[str, Any]) -> TokenCounts:
    """The tokens in the usage of a response, by the names of either of OpenAI's protocols; 0 where there is no number.

    Example:
        >>> token_counts({"prompt_tokens": 2, "completion_tokens": 3}).total
        5
    """
    prompt = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
    response = usage.get("completion_tokens") or usage.get("output_tokens") or 0
    return TokenCounts(prompt, response, usage.get("total_tokens") or prompt + response)


def known_prices(lm: Any) -> tuple[float, float] | None:
    """The prices that DSPy knows, in USD per million tokens in and out; None for none."""
    try:
        route = resolve(lm)
        info = model_info(route.provider, route.model)
    except LM15Error:  # a model that only LiteLLM can route
        info = model_info(*lm.model.split("/", 1)) if "/" in lm.model else {}
    prices = [rate(info, key) for key in ("input_cost_per_token", "output_cost_per_token")]
    return None if prices[0] is None or prices[1] is None else (prices[0] * 1e6, prices[1] * 1e6)


def responses_asked(lm: Any, options: Mapping[str, Any]) -> int:
    """How many responses a call asks for, by its options or those of its LM."""
    found: int = options.get("n") or getattr(lm, "kwargs", {}).get("n") or 1
    return found
