"""Values of a state in immutable form: freeze, thaw, compare, encode. Not here: what a field accepts (`schema`)."""
