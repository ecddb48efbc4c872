"""Layers: what surrounds the executions of nodes, each in a file of its own, on one protocol."""
