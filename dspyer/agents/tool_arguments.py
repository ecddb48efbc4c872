"""The arguments of tool calls, validated and parsed as `dspy.Tool` does, with validators that are made once.

`dspy.Tool` makes a pydantic model and a JSON schema validator for each argument of each call (measured: 320 µs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import dspy
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pydantic import TypeAdapter, ValidationError

from dspyer.schema.fields import refusal_text


class ArgumentParser(NamedTuple):
    """Validates and parses one argument; what it lacks is not checked."""

    schema: Any
    adapter: TypeAdapter[Any] | None

    def parse(self, name: str, value: Any) -> Any:
        """The value of an argument as one of its type; raises `ValueError`, of pydantic too, for a wrong one."""
        if self.schema is not None:
            plain = value.model_dump() if hasattr(value, "model_dump") else value
            error = best_match(self.schema.iter_errors(plain))
            if error is not None:
                raise ValueError(f"Arg {name} is invalid: {error.message}")
        return value if self.adapter is None else self.adapter.validate_python(value)


def argument_parsers(tool: dspy.Tool) -> dict[str, ArgumentParser]:
    """The parsers of a tool's arguments by name; an argument for which none can be made is left to the tool."""
    found = {}
    for name, schema in (tool.args or {}).items():
        kind = (tool.arg_types or {}).get(name, Any)
        try:
            validator = None
            if schema.get("type") not in (None, "Any"):
                made = validator_for(schema)
                made.check_schema(schema)
                validator = made(schema)
            found[name] = ArgumentParser(validator, None if kind is Any else TypeAdapter(kind))
        except Exception:  # noqa: BLE001 - of a schema or type that is none: the tool says at each call what is wrong
            continue
    return found


def invalid_argument(name: str, refusal: ValidationError, *, of_dspy: bool) -> ValueError:
    """What a model is told of an argument that pydantic refuses: which one, and where in it.

    DSPy validates each argument as the field `value` of a model of its own (`of_dspy`).
    """
    return ValueError(f"the argument {name!r} is invalid: {refusal_text(refusal, 'value' if of_dspy else '')}")


def refused_by_dspy(tool: dspy.Tool, args: Mapping[str, Any], refusal: ValidationError) -> Exception:
    """The error of a call with arguments that DSPy has refused by pydantic, with the name of the first of them."""
    for name, value in args.items():
        try:
            tool._validate_and_parse_args(**{name: value})
        except ValidationError as found:
            return invalid_argument(name, found, of_dspy=True)
    return refusal
