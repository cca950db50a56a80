"""Threads of the operating system where gevent or eventlet has put greenlets in their place."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A lease is renewed while the process does nothing but a call of C; what its renewal logs is written afterwards.
_BLOCKED = """
import ctypes, logging, sys, threading
from repot.renewal import Renewer

class Lease:
    interval_s, renewed, threads = 0.02, 0, set()

    def renew(self):
        self.renewed += 1
        if self.renewed == 1:
            raise OSError("the store is away")
        return True

class Lines(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        written.set()

written, leases, renewer = threading.Event(), [Lease() for _ in range(40)], Renewer()
logging.getLogger().addHandler(Lines())
for lease in leases:
    renewer.add(lease)
while min(lease.renewed for lease in leases) < 3:
    ctypes.CDLL(None).usleep(1000)
assert not written.is_set()
assert written.wait(20)
"""

_PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.parametrize("library", _PATCHES)
def test_leases_are_renewed_while_the_process_blocks(library: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PATCHES[library] + _BLOCKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.count("the store is away")) == (0, 40), done.stderr
