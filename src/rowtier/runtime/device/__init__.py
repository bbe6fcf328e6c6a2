"""What a step does with rows and ids, as operations on tensors that any device can have."""
