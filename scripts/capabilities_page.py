"""Write the tables of capabilities in docs/celery-releases.md and README.md from repot/upstream/capabilities.py."""

from __future__ import annotations

from pathlib import Path

from repot.upstream.capabilities import CAPABILITIES, Before, Capability

ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- made by make docs: capabilities -->\n", "<!-- end -->"

#: Minor releases of Celery, with the kombu and the redis-py that applications have beside them
#: (`requirements-celery-*.txt`).
RELEASES = {
    "5.4": {"celery": "5.4", "kombu": "5.4", "redis": "5.0.4"},
    "5.5": {"celery": "5.5", "kombu": "5.5", "redis": "7.1"},
    "5.6": {"celery": "5.6", "kombu": "5.6", "redis": "5.2"},
    "5.7": {"celery": "5.7", "kombu": "5.7", "redis": "8.1"},
}
_LIBRARIES = {"celery": "Celery", "kombu": "kombu", "redis": "redis-py"}


def page(text: str) -> str:
    """Return the page of releases with the current table."""
    heads = ["capability", *(f"Celery {minor}" for minor in RELEASES), "with an older release"]
    rows = [
        f"| {one.gives} | {' | '.join(_cell(one, minor) for minor in RELEASES)} | {one.note} |" for one in CAPABILITIES
    ]
    return _replaced(text, [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *rows])


def readme(text: str) -> str:
    """Return the README with the current table of what each release of Celery gets."""
    rows = [f"| {minor} | {_beside(found)} | {_gets(minor)} |" for minor, found in RELEASES.items()]
    return _replaced(text, ["| your Celery | tested beside it | what you get |", "| --- | --- | --- |", *rows])


def _replaced(text: str, lines: list[str]) -> str:
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n".join(lines) + "\n" + _END + rest.partition(_END)[2]


def _cell(capability: Capability, minor: str) -> str:
    if capability.is_in(RELEASES[minor][capability.library]):
        return _LIBRARIES[capability.library]
    return capability.before.value


def _beside(found: dict[str, str]) -> str:
    return ", ".join(f"{_LIBRARIES[name]} {release}" for name, release in found.items() if name != "celery")


def _gets(minor: str) -> str:
    missing = [one for one in CAPABILITIES if not one.is_in(RELEASES[minor][one.library])]
    off = [one.gives for one in missing if one.before is Before.ABSENT]
    supplied = len(missing) - len(off)
    listed = " and ".join(filter(None, [", ".join(off[:-1]), *off[-1:]]))
    words = f"everything but {listed}" if off else "everything"
    return f"{words}; repot supplies {supplied} more that this release lacks" if supplied else words


def main() -> None:
    """Write both."""
    for name, make in (("docs/celery-releases.md", page), ("README.md", readme)):
        path = ROOT / name
        path.write_text(make(path.read_text()))


if __name__ == "__main__":
    main()
