"""Pictures of graphs and runs: layout, SVG, Mermaid, text."""
