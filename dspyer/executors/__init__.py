"""Programs with an executor: a call as a task, the worker that makes it, and the bytes that both send each other."""
