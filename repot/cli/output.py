"""What happens when the reader of a pipe leaves, as `head` does, or the output cannot be written."""

from __future__ import annotations

import errno
import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import click

from repot.errors import RepotError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What a shell reports for a program that ended because its reader left: 128 and the number of SIGPIPE.
READER_LEFT = 141


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """End the process without a traceback when standard output or error cannot be written any more.

    An error of any other file or socket passes through: a broker's broken pipe is not the reader's.

    Raises:
        SystemExit: 141 when the reader of a pipe left, 1 when the output could not be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if not _silenced():
            raise
        if error.errno == errno.EPIPE:
            sys.exit(READER_LEFT)
        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        sys.exit(RepotError.exit_code)
    except SystemExit as end:
        # rich ends the process itself, with 1: rich/console.py, Console.on_broken_pipe
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(READER_LEFT)
        raise


def _silenced() -> list[TextIO]:
    """The standard streams that cannot be written; from now on what they are given is dropped.

    Python writes at its end what a stream still holds, and would report the error once more.
    """
    found = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and not _is_writable(stream)]
    for stream in found:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
    return found


def _is_writable(stream: TextIO) -> bool:
    """Whether a stream takes more: not the pipe of a reader that left, nor one that cannot get rid of what it holds."""
    try:
        stream.flush()
        readers = select.poll()
        readers.register(stream.fileno(), 0)
        return not readers.poll(0)
    except OSError:
        return False
