"""The search modes: each ranks the rows of a block for queries, in its own way.

A mode promises the best rows by its own utility, ties to the lower id, and exact scores for what it
returns, whatever else was asked with it.
"""
