"""The worker: configuring an application, dead-lettering, expiry, routing, and the status file."""
