"""The arithmetic of the exact scan, one file a machine; what they promise stands in `scan`."""
