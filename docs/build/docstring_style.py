"""Shows docstrings as they are meant: the `Example:` part as code, the fields of a record as its parameters."""

from __future__ import annotations

import re
from typing import Any

import griffe


class DocstringStyle(griffe.Extension):
    """Adapts what griffe has read before it is shown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for each class when its members are known: griffe itself looks at `__init__` and dataclasses alone."""
        if "__init__" in cls.members:
            return
        if isinstance(new := cls.members.get("__new__"), griffe.Function):
            cls.set_member("__init__", griffe.Function("__init__", parameters=new.parameters))
        elif any(str(base) == "NamedTuple" for base in cls.bases) or any(
            decorator.callable_path == "pydantic.dataclasses.dataclass" for decorator in cls.decorators
        ):
            kind = griffe.ParameterKind.positional_or_keyword
            fields = [m for m in cls.attributes.values() if m.annotation and "property" not in m.labels]
            given = [griffe.Parameter(f.name, annotation=f.annotation, kind=kind, default=f.value) for f in fields]
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*given)))
