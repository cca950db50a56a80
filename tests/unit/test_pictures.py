"""The pictures of the docs, and the script that makes them."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
SVG = "{http://www.w3.org/2000/svg}"

script = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))


def session_of(program: str, directory: Path) -> ET.Element:
    lines = script["recorded"]([sys.executable, "-c", program], directory)
    return ET.fromstring(script["session"]("a program", lines))  # noqa: S314 - our own


def shown(svg: ET.Element) -> list[str]:
    return ["".join(one.itertext()) for one in svg.iter(f"{SVG}text")]


def test_a_session_has_every_line_that_was_printed(tmp_path: Path) -> None:
    svg = session_of("print('<one> & two'); print(); print('\\033[1;31mred\\033[0m and plain')", tmp_path)
    assert shown(svg) == ["$ a program", "<one> & two", "", "red and plain"]
    (red,) = (one for one in svg.iter(f"{SVG}tspan") if one.text == "red")
    assert "font-weight:bold" in red.attrib["style"]
    assert "fill:#" in red.attrib["style"]
    assert svg.findtext(f"{SVG}title") == "a program in a terminal"


def test_a_long_line_is_broken_and_no_directory_of_this_machine_is_shown(tmp_path: Path) -> None:
    program = "import os; print('word ' * 30); print(os.path.join(os.getcwd(), 'report.html'))"
    first, second, last = shown(session_of(program, tmp_path))[1:]
    assert f"{first} {second}".split().count("word") == 30
    assert len(first) <= script["COLUMNS"]
    assert last == "report.html"


def test_a_command_that_fails_makes_no_picture(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        script["recorded"]([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_a_session_loads_nothing_and_can_stand_still() -> None:
    text = (PICTURES / "demo.svg").read_text()
    assert re.findall(r"(?:href|src|url)\W", text) == []
    assert "prefers-reduced-motion" in text
    assert "at least once" in " ".join(shown(ET.fromstring(text)))  # noqa: S314 - our own


def test_every_picture_is_made_by_the_script_and_shown_on_a_page_with_words() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    found = {
        (page.parent / target).resolve(): words
        for page in pages
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
    }
    made = {one.resolve() for one in PICTURES.iterdir()}
    assert made == {*found}
    assert all(len(words.split()) > 3 for words in found.values())
    maker = (ROOT / "scripts" / "pictures.py").read_text()
    assert [one.name for one in made if f'"{one.name}"' not in maker] == []
