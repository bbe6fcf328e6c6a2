"""Parts of `claims.py`: what papers said, what was measured, and docs/results.md from both."""
