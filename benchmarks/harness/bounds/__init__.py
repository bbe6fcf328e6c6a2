"""Parts of `bounds.py`: problems, plans and edits that are held against certificates."""
