"""Requests to forget in plain words."""
