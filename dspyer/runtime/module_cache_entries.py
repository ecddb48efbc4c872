"""What is kept of a call of a module: what it returned, and the steps that it added to the DSPy trace.

A step names its predictor by its path in the module, so that it comes back with that of the program that reads it. A
value that a step shares with the inputs of the call, or with an earlier step, is written as a reference: it comes back
as the same object. For DSPy seeds a choice of BootstrapFewShot with a pickle of demonstrations, in which equal texts
differ from one text twice. Names are the objects that DSPy takes, those of the signature; all other values are objects
of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import dspy
from dspy import ToolCalls

from dspyer.dspy_module.predictors import predictors_in
from dspyer.dspy_module.tracing import Steps
from dspyer.errors import StateError, brief
from dspyer.schema.schema import Schema
from dspyer.threads.graph_fingerprint import named_classes
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from dspyer.values.named_classes import classes_in

_OF_DSPY: Final = (dspy.History, dspy.Image, dspy.Audio, dspy.Code, ToolCalls, ToolCalls.ToolCall, dspy.Example)
_CLASS: Final = '"class"'
_VALUES: Final = (type(None), bool, int, float)  # of which no pickle sees whether two are one object


def encode_result(result: Any, steps: Steps, module: dspy.Module, inputs: Mapping[str, Any]) -> bytes:
    """The entry of a call; `StateError` if it cannot be kept."""
    paths: dict[int, str] = {}
    for path, predictor in predictors_in(module):
        paths.setdefault(id(predictor), path)
    writer = _Writer(inputs)
    found: dict[str, Any] = {"steps": [writer.step(index, step, paths) for index, step in enumerate(steps)]}
    same = [index for index, (_, _, outputs) in enumerate(steps) if outputs is result]
    if same:
        found["result"] = same[0]
    elif type(result) is dspy.Prediction:
        found["result"] = writer.prediction(len(steps), result)
    elif type(result) is dict:
        found["result"] = {"dict": writer.pairs(result)}
    else:
        raise StateError(f"it gave {brief(result)}, which is neither a dspy.Prediction nor a dict")
    return json.dumps(found, allow_nan=False).encode()


class _Writer:
    """Encodes values, and remembers those that were before."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = inputs  # kept, so that no other object gets the id of one
        self._known: dict[int, Any] = {}
        for name, value in inputs.items():
            if type(value) not in _VALUES:
                self._known.setdefault(id(value), {"input": name})

    def value(self, value: Any) -> Any:
        known = self._known.get(id(value))
        return {"value": encoding.encode(freeze(value))} if known is None else known

    def pairs(self, values: Mapping[str, Any]) -> list[Any]:
        return [[name, self.value(value)] for name, value in values.items()]

    def step(self, index: int, step: tuple[Any, dict[str, Any], Any], paths: Mapping[int, str]) -> Any:
        predictor, inputs, outputs = step
        if id(predictor) not in paths:
            raise StateError(f"a step of it is that of a {type(predictor).__name__} that it does not hold")
        return [paths[id(predictor)], self.pairs(inputs), self.prediction(index, outputs)]

    def prediction(self, index: int, prediction: Any) -> Any:
        if type(prediction) is not dspy.Prediction:
            raise StateError(f"it gave {brief(prediction)}, which is no dspy.Prediction")
        store = dict(prediction.items(include_dspy=True))
        pairs = self.pairs(store)
        for name, value in store.items():
            if type(value) not in _VALUES:
                self._known.setdefault(id(value), {"step": index, "name": name})
        completions = prediction.completions
        if completions is None:
            return [pairs, None]
        return [pairs, [[name, list(map(self.value, values))] for name, values in completions.items()]]


def decode_result(
    entry: bytes, module: dspy.Module, inputs: Mapping[str, Any], schema: Schema
) -> tuple[Any, list[tuple[Any, dict[str, Any], Any]]]:
    """The result and the steps of an entry; `StateError` if it cannot be read here."""
    text = entry.decode()
    found = json.loads(text)
    predictors = dict(predictors_in(module))
    reader = _Reader(inputs, _decoder(predictors.values(), schema) if _CLASS in text else _PLAIN)
    steps = [reader.step(step, predictors) for step in found["steps"]]
    result = found["result"]
    if type(result) is int:
        return steps[result][2], steps
    if type(result) is dict:
        return reader.values(result["dict"]), steps
    return reader.prediction(result), steps


def _decoder(predictors: Any, schema: Schema) -> Callable[[Any], Any]:
    types = [info.annotation for predictor in predictors for info in predictor.signature.fields.values()]
    return encoding.decoder((*_OF_DSPY, *named_classes(schema), *classes_in(types)))


_PLAIN: Final = encoding.decoder()


class _Reader:
    """Decodes values, and finds those that it has decoded before."""

    def __init__(self, inputs: Mapping[str, Any], decode: Callable[[Any], Any]) -> None:
        self._inputs = inputs
        self._decode = decode
        self._stores: list[dict[str, Any]] = []

    def value(self, found: Any) -> Any:
        if "input" in found:
            return self._inputs[found["input"]]
        if "step" in found:
            return self._stores[found["step"]][found["name"]]
        return thaw(self._decode(found["value"]))

    def values(self, pairs: Any, names: Iterable[str] = ()) -> dict[str, Any]:
        """Values by name; a name is the object among `names` that it equals."""
        own = {name: name for name in names}
        return {own.get(name, name): self.value(value) for name, value in pairs}

    def step(self, step: Any, predictors: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        path, inputs, outputs = step
        predictor = predictors[path]
        found = self.values(inputs, (*predictor.signature.input_fields, *self._inputs))
        return predictor, found, self.prediction(outputs, predictor.signature)

    def prediction(self, found: Any, signature: Any = None) -> dspy.Prediction:
        pairs, completions = found
        store = self.values(pairs, () if signature is None else signature.output_fields)
        self._stores.append(store)
        made = dspy.Prediction()
        if completions is not None:
            lists = {name: list(map(self.value, values)) for name, values in completions}
            own = [name for name in store if name in lists]  # the same objects as names
            lists = {name: lists[name] for name in dict.fromkeys((*own, *lists))}
            made = dspy.Prediction.from_completions(lists, signature)
        vars(made)["_store"] = store
        return made
