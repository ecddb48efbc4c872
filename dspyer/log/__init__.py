"""A run as rows of a store: write, read, replay. It knows no program: stored conversations are `threads`."""
