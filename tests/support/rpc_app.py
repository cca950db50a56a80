"""An application whose results come by rpc://, and one whose results are in a Redis."""

from __future__ import annotations

from celery import Celery

app = Celery("rpc", backend="rpc://", set_as_current=False)
stored = Celery("stored", backend="redis://127.0.0.1:1/0", set_as_current=False)
