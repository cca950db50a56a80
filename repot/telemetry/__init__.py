"""Traces and metrics of the application's own OpenTelemetry, and logs as JSON.

Nothing here imports the package `opentelemetry` before the application has set a provider by it.
"""
