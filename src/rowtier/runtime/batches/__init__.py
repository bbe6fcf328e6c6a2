"""Data files as batches for training."""
