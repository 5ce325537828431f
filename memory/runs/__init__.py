"""Which cases were shown for which query, and how that ended."""
