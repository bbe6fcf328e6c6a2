"""Parts of `flexshard.py`: sequences, plans, and what ranks do."""
