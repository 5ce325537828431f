"""A whole bank as one file, and back, forgetting again what was forgotten since."""
