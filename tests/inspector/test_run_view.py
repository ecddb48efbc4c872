"""The view of a run in Chromium: strip, tree and pane, live, by keyboard alone, and as a file."""
