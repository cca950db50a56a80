"""Where a worker's status file stands: what a reader finds there when the disk is full."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from repot.worker.status_place import StatusPlace
from support.full_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096


def _content(pages: float, number: int = 0) -> str:
    return f"{number} " + "x" * int(pages * PAGE)


def _in_child(test: Callable[[], None]) -> bool:
    """Run it in a process of its own, whose limits stay with it; return whether it went well."""
    child = os.fork()
    if not child:
        try:
            test()
        except BaseException:  # noqa: BLE001 - pytest must not go on in the child
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_the_content_is_replaced_and_nothing_but_it_is_shown(tmp_path: Path) -> None:
    place = StatusPlace(tmp_path / "w@h.json")
    for number, pages in enumerate((1, 9, 2, 30, 1)):
        place.write(_content(pages, number))
        assert _content(pages, number) == place.path.read_text().rstrip()
        assert [found.name for found in tmp_path.iterdir() if not found.name.startswith(".")] == ["w@h.json"]
    place.leave()
    assert [found.name for found in tmp_path.iterdir()] == ["w@h.json"]


def test_on_a_full_disk_it_grows_into_its_room_and_keeps_its_last_content(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        place = StatusPlace(disk.path / "w@h.json")
        place.write(_content(0))
        disk.fill()
        for number in range(20):
            place.write(_content(3, number))
            assert _content(3, number) == place.path.read_text().rstrip()
            # what another program waits for
            disk.fill()
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                place.write(_content(10))
            assert _content(3, 19) == place.path.read_text().rstrip()
            disk.fill()
        place.write(_content(2, 20))
        assert _content(2, 20) == place.path.read_text().rstrip()
        disk.empty()
        place.write(_content(10, 21))
        assert _content(10, 21) == place.path.read_text().rstrip()


def test_a_place_belongs_to_one_process_until_it_ends(tmp_path: Path) -> None:
    """However it ends, and though its own children live on."""
    reader, writer = os.pipe()
    owner = os.fork()
    if not owner:
        StatusPlace.claim(tmp_path, "w@h")
        # a child of the owner's, which holds the descriptors
        if not os.fork():
            os.write(writer, str(os.getpid()).encode())
            signal.pause()
        signal.pause()
    child = int(os.read(reader, 16))
    try:
        assert StatusPlace.claim(tmp_path, "w@h").path.name == "w@h+2.json"
        assert StatusPlace.claim(tmp_path, "other@h").path.name == "other@h.json"
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        third = StatusPlace.claim(tmp_path, "w@h")
        assert third.path.name == "w@h.json"
        third.leave()
        assert StatusPlace.claim(tmp_path, "w@h").path.name == "w@h.json"
    finally:
        os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            # if the test failed before it ended the owner
            if os.waitpid(owner, os.WNOHANG) == (0, 0):
                os.kill(owner, signal.SIGKILL)


def test_a_content_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    place = StatusPlace(tmp_path / "w@h.json")

    def without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * PAGE, 8 * PAGE))
        place.write(_content(1))
        with pytest.raises(OSError, match="File too large"):
            place.write(_content(10))
        assert _content(1) == place.path.read_text().rstrip()
        place.write(_content(1, 2))

    assert _in_child(without_room)
    assert _content(1, 2) == place.path.read_text().rstrip()


def test_a_writer_that_was_killed_between_two_names_is_no_hindrance(tmp_path: Path) -> None:
    place = StatusPlace(tmp_path / "w@h.json")
    place.write(_content(1))
    (tmp_path / ".w@h.json.last").hardlink_to(place.path)
    for number in range(3):
        StatusPlace(place.path).write(_content(1, number))
        assert _content(1, number) == place.path.read_text().rstrip()
    assert place.path.stat().st_nlink == 1
