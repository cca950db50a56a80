"""Probes, the sidecar and the metrics of a worker."""
