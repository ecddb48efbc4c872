"""The arguments of tool calls, validated and parsed as `dspy.Tool` does, with validators that are made once.

`dspy.Tool` makes a pydantic model and a JSON schema validator for each argument of each call (measured: 320 µs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dspy
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pydantic import TypeAdapter


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
