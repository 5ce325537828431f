"""From what a request names to its absence, with a receipt."""
