"""Training on a plan: addressing, exchange, updates, checkpoints. Users import `rowtier.torch`."""
