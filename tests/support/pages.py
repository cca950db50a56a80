"""The code blocks of the pages, and what their first lines say of running them.

The first line of a block names its language. Blocks of commands are `sh`, or `console` with prompts and output:

    sh                        is typed and ends with 0; with `exit=N` its last command ends with N
    sh after=NAME             is typed when the command in that terminal has ended
    sh terminal=NAME          each command goes on in a terminal of its own, until it is ready and the next one follows;
                              with `exit=N` the last one ends by itself with N before the page does
    sh run-by="FILES"         is not typed: these tests do the same, command by command
    sh not-run="REASON"       is not run, and why
    text output=compared      what the block before it prints; `...` stands for anything, a number for any number
    python file=NAME          a file that the reader saves

The tutorials, docs/tutorial-*.md, have a program of their own, `scripts/run_page.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Those that `scripts/run_page.py` runs.
TUTORIALS = [ROOT / "docs" / f"tutorial-{name}.md" for name in ("rollout", "ran-twice")]
PAGES = [path for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]) if path not in TUTORIALS]

_BLOCK = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$")
_OPTION = re.compile(r"([a-z-]+)=(\"[^\"]*\"|\S+)")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    place: str
    language: str
    options: dict[str, str]
    text: str

    @property
    def is_typed(self) -> bool:
        """Whether a test types its commands."""
        return self.language == "sh" and not self.options.keys() & {"run-by", "not-run"}

    @property
    def exit_code(self) -> int:
        """The exit code of the last command."""
        return int(self.options.get("exit", 0))


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        options = {name: value.strip('"') for name, value in _OPTION.findall(match["options"])}
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        lines = [line.removeprefix(match["indent"]) for line in match["text"].splitlines()]
        found.append(Block(place, match["language"], options, "\n".join(lines)))
    return found
