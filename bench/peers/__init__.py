"""One module per library: its workloads, run in a process of its own by `serve.py`."""
