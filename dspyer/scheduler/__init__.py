"""The pure core: a run is a value; `plan`, `begin` and `advance` make the next. No clock, threads or DSPy here."""
