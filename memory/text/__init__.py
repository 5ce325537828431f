"""Words: the full-text index, and when two texts say the same."""
