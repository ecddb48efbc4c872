"""Stored conversations: what a thread is asked, and what it tells."""
