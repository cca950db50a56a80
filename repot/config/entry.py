"""One entry of a Celery configuration with its origin."""

from __future__ import annotations

from typing import NamedTuple

#: The settings that every TLS option follows.
TLS_FIELDS = ("tls_verify", "tls_ca_certs", "tls_certificate", "tls_key")


class Entry(NamedTuple):
    """A Celery setting's key, its value, and the names of repot's settings that it follows.

    A key with a dot names one option of a dictionary, as in
    `broker_transport_options.visibility_timeout`. Without `fields` repot sets a
    fixed value that no variable changes.
    """

    key: str
    value: object
    fields: tuple[str, ...] = ()


def entry(key: str, value: object, *fields: str) -> Entry:
    """Make an entry."""
    return Entry(key, value, fields)


def transport_option(name: str, value: object, *fields: str) -> Entry:
    """Make an entry of `broker_transport_options`."""
    return Entry(f"broker_transport_options.{name}", value, fields)
