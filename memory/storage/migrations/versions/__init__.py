"""One module a format, run in order."""
