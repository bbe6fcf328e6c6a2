"""Parts of `sca.py`: expectations against draws, and training with and without caches."""
