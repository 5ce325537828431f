"""Cases coming in and going out: files, backups, restores."""
