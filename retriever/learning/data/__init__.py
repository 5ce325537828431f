"""From outcome logs to batches."""
