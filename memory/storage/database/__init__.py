"""The two databases a bank can live in, each behind the same few operations."""
