"""One entry of a Celery configuration, and where it comes from."""

from __future__ import annotations

from typing import NamedTuple

#: What every TLS option follows.
TLS_FIELDS = ("tls_verify", "tls_ca_certs", "tls_certificate", "tls_key")


class Entry(NamedTuple):
    """A Celery setting's key, its value, and the fields of the settings it follows.

    A key with a dot names one option of a dictionary, as in
    `broker_transport_options.visibility_timeout`. Without `fields` repot chose the
    value; no variable changes it.
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
