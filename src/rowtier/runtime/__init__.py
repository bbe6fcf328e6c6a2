"""Training on a plan: addressing, exchange, updates and checkpoints. Users import `rowtier.torch`."""
