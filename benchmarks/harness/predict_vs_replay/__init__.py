"""Parts of `predict_vs_replay.py`."""
