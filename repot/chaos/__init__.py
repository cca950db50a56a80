"""Faults, scenarios, the experiment, the verdict, the report."""
