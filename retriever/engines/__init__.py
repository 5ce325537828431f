"""Turning models into numbers: one engine a runtime, all behind `retriever.types`."""
