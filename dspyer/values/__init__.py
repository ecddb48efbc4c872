"""The values of a state in immutable form: freeze, thaw, compare, encode as JSON.

From the bottom up: `persistent` (maps and vectors whose versions share storage), `scalars` (values without parts, and
errors for values that a state cannot hold), `frozen` (the immutable containers, and `thaw`), `freezing` (`freeze`,
`same`, and the types that are kept as private copies), `json`. What a field accepts is decided in `schema`, not here.
"""
