"""Telling orchestrators and people the truth about a worker: the probes, the sidecar, the metrics."""
