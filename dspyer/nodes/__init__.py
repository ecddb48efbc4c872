"""Node kinds and routers: how each is built and called. Not here: when a node starts (`scheduler`)."""
