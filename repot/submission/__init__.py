"""Accepting a job once: the scope it occupies, its record, and the answer to the second click."""
