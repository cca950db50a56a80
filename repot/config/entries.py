"""One entry of a Celery configuration, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A Celery setting's key, its value, and the field of the settings it follows.

    A key with a dot names one option of a dictionary, as in
    `broker_transport_options.visibility_timeout`. Without `field` repot chose the
    value; no variable changes it.
    """

    key: str
    value: object
    field: str = ""
