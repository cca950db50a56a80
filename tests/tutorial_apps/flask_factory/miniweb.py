"""The few parts of a web framework that the factory pattern leans on."""

from contextlib import contextmanager
from contextvars import ContextVar

current = ContextVar("current")


class Web:
    def __init__(self, import_name):
        self.name = import_name
        self.config = {}
        self.extensions = {}

    @contextmanager
    def app_context(self):
        token = current.set(self)
        try:
            yield self
        finally:
            current.reset(token)
