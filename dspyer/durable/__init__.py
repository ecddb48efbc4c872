"""A run as rows of a store: what is written, read, replayed and resumed."""
