"""The torch side: learning which case helps. Nothing outside this package trains."""
