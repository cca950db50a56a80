"""Replace a worker's status file in one step, with room reserved for the next content: a full disk loses no content."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from repot.worker.status_file import path_of

if TYPE_CHECKING:
    from pathlib import Path

#: A content is filled up with spaces to a multiple of so many bytes, into which it may grow on a full disk.
_ROOM = 16 << 10
#: `struct flock` of fcntl(2) on Linux: the kind of lock, from where, its start, its length, the process that has it.
_LOCK = struct.Struct("hhqqi4x")


class StatusPlace:
    """The place of one worker's status file.

    Beside the file there is a second one of the same size, hidden. A new content overwrites that one, which takes no
    room, and then the two change their names. So readers never see a part of a content, and an error leaves the last
    one.
    """

    def __init__(self, path: Path) -> None:
        """Write nothing yet."""
        self.path = path
        self._writing = 0
        self._lock: int | None = None

    @classmethod
    def claim(cls, directory: Path, node: str) -> StatusPlace:
        """Return the first place of a worker's name that no other process holds; this one holds it until it ends.

        The kernel returns the lock of a process that is killed, and children do not inherit it.
        """
        return next(place for number in count(1) if (place := cls(path_of(directory, node, number))).take())

    def take(self) -> bool:
        """Return whether no other process holds the place, and hold it then; where there are no locks it is free."""
        try:
            _make_private_dir(self.path.parent)
            self._lock = os.open(self._beside("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(self._lock)
            self._lock = None
            return False
        except OSError:
            # a file system without locks
            return True
        return True

    def is_held(self) -> bool | None:
        """Return whether a process of this machine holds the place, in any container; None if that cannot be told.

        It is asked without taking the lock: a worker that begins in this moment finds the place free.
        """
        try:
            with self._beside("lock").open("rb") as file:
                found = fcntl.fcntl(file, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except (OSError, AttributeError):
            return None
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def write(self, text: str) -> None:
        """Replace the content; a signal's handler may do so in the middle of another call.

        Raises:
            OSError: there is no room or it cannot be written, or the directory belongs to another user.
        """
        self._writing += 1
        try:
            _make_private_dir(self.path.parent)
            beside = self._beside(str(self._writing))
            _fill(beside, text)
            if self._writing > 1:
                beside.replace(self.path)
            else:
                self._change_names(beside, text)
        finally:
            self._writing -= 1

    def leave(self) -> None:
        """Delete the second file, and let another process have the place: the worker ends."""
        with suppress(OSError):
            self._beside("1").unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _change_names(self, beside: Path, text: str) -> None:
        last = self._beside("last")
        last.unlink(missing_ok=True)
        try:
            last.hardlink_to(self.path)
        except OSError:
            # the first content, or a file system without hard links
            beside.replace(self.path)
            with suppress(OSError):
                _fill(beside, text)
        else:
            beside.replace(self.path)
            last.replace(beside)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{suffix}")


def _fill(path: Path, text: str) -> None:
    """Overwrite a file from its beginning, up to its end at least; it is made where it does not exist.

    Raises:
        OSError: there is no room, or it cannot be written.
    """
    content = text.encode()
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:  # noqa: PTH123 - opened to overwrite or make
        reserved = max(os.fstat(file.fileno()).st_size, -(-len(content) // _ROOM) * _ROOM)
        file.write(content.ljust(reserved))


def _make_private_dir(directory: Path) -> None:
    """Make a directory that only this user can write to.

    Raises:
        OSError: it belongs to another user, who could claim that a dead worker lives.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid not in (os.getuid(), 0):
        message = "the directory belongs to another user"
        raise PermissionError(message)
