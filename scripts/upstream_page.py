"""Write the table of points in docs/upstream.md from the modules of repot/upstream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from repot.upstream.points import points

if TYPE_CHECKING:
    from repot.upstream.point import Point

_HEAD = "| module | point | if it changes | |\n| --- | --- | --- | --- |\n"


def page(text: str) -> str:
    """Return the page with the current table, which is its end."""
    lines = [
        f"| `{module}` | {_named(point)} | {point.breaks} | {point.failure.value} |"
        for module, found in sorted(points().items())
        for point in found
    ]
    return text.partition(_HEAD)[0] + _HEAD + "\n".join(lines) + "\n"


def _named(point: Point) -> str:
    return f"`{point.target}`" + (f" ({point.releases})" if point.releases else "")


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "upstream.md"
    path.write_text(page(path.read_text()))
