"""Parts of `step_truth.py`: data, what ranks do, and figures."""
