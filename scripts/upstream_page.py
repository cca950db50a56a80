"""Write the table of points in docs/upstream.md from the modules of repot/upstream."""

from __future__ import annotations

from pathlib import Path

from repot.upstream.points import points

_HEAD = "| module | point | if it changes | |\n| --- | --- | --- | --- |\n"


def page(text: str) -> str:
    """Return the page with the current table, which is its end."""
    lines = [
        f"| `{module}` | `{point.target}` | {point.breaks} | {point.failure.value} |"
        for module, found in sorted(points().items())
        for point in found
    ]
    return text.partition(_HEAD)[0] + _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "upstream.md"
    path.write_text(page(path.read_text()))
