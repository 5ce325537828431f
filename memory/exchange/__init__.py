"""Cases coming in and going out, as files."""
