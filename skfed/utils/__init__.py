"""Helpers that belong to no one room."""
