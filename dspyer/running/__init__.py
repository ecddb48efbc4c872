"""One run in the making: the session that the drivers share, and the drivers."""
