"""The scenarios, the profiles they run under, and what is expected of each cell."""
