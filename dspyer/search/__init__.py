"""Searches: graphs that try a module several times, rate each trial, and keep the best one.

A search is a graph over a tree of patches. Its result does not depend on timing, and a stored one survives crashes.
"""

from dspyer.search.search_graph import beam, best_of, mcts, tree
from dspyer.search.trial import Tree, Trial

__all__ = ["Tree", "Trial", "beam", "best_of", "mcts", "tree"]
