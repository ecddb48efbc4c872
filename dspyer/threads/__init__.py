"""Stored conversations: start, own, resume, read and change a thread. Not here: what a row holds (`log`)."""
