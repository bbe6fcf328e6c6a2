"""Plans as pages for people."""
