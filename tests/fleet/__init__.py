"""Fleets: worker processes, a queue and a store in one PostgreSQL. They run the tasks of `examples/fleet_tasks.py`."""
