"""The values of a state in immutable form: freeze, thaw, compare, encode as JSON.

From the bottom up: `persistent` (maps and vectors whose versions share storage), `refusals` (errors for values that a
state cannot hold), `frozen` (the immutable scalars and containers, and `thaw`), `types` (the types that are kept as
private copies), `freezing` (`freeze` and `same`), `json`. What a field accepts is decided in `schema`, not here.
"""
