"""Guarding an effect: the key of a call, the claim on it, and the task that holds it while it runs."""
