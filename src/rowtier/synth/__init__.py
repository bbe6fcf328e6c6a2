"""Generated workloads: datasets on disk, and curve profiles of enormous models."""
