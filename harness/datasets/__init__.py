"""Benchmark data: one loader a data set, written once and checked line by line."""
