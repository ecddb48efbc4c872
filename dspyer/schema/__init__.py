"""The fields of a state: types, limits, and how an update becomes the next value. Not here: reducers and views."""
