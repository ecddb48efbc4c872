"""Node kinds, routers, and what `ctx` does (`attempt`). Not here: when a node starts (`scheduler`)."""
