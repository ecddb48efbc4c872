"""Shows docstrings as they are meant: the `Example:` part as code, the parameters of `__new__` as those of the class."""

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
        """Called for each class when its members are known."""
        new = cls.members.get("__new__")
        if isinstance(new, griffe.Function) and "__init__" not in cls.members:
            init = griffe.Function("__init__", parameters=new.parameters, lineno=new.lineno, endlineno=new.endlineno)
            cls.set_member("__init__", init)
