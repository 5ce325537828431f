"""Experiments over the retriever and the memory: each measures, none is needed to serve."""
