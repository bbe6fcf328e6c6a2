"""What travels between ranks in a step, and how: ids, rows, sums, gradients, bytes."""
