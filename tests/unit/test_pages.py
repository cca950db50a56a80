"""Every command of a page is run by a test or marked with the reason why not, and its Python means something."""

from __future__ import annotations

import ast
import importlib
import re
from typing import TYPE_CHECKING

import pytest

from support.pages import PAGES, ROOT, blocks

if TYPE_CHECKING:
    from support.pages import Block

LANGUAGES = {"console", "diff", "python", "sh", "sql", "text", "toml", "yaml"}
OPTIONS = {"after", "exit", "file", "not-run", "output", "run-by", "terminal"}
#: The first words of lines that are commands.
COMMAND = re.compile(
    r"(?m)^\s*(?:- run: )?(?:\$ |sudo |[A-Z_]+=\S+ )*"
    r"(?:repot|celery|make|curl|docker|kubectl|redis-cli|rabbitmqctl|supervisorctl"
    r"|pip|python3?|pytest|export|ACL) (?!=)"
)
#: How long a reason is at least, in words: "needs a cluster" is one, "no" is not.
REASON_WORDS = 3

BLOCKS = [block for page in PAGES for block in blocks(page)]
MARKED = [block for block in BLOCKS if block.options.keys() & {"not-run", "run-by"}]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def place(block: Block) -> str:
    return block.place


def test_there_are_blocks_of_each_kind() -> None:
    """An expression that finds no block would let every other test pass."""
    assert len(PAGES) > 25
    borders = sum(len(re.findall(r"(?m)^ *```", page.read_text())) for page in PAGES)
    assert borders == 2 * len(BLOCKS)
    assert sum(block.is_typed for block in BLOCKS) > 20
    assert MARKED
    assert PYTHON


@pytest.mark.parametrize("block", BLOCKS, ids=place)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.options.keys() <= OPTIONS


@pytest.mark.parametrize("block", BLOCKS, ids=place)
def test_a_command_is_run_or_marked(block: Block) -> None:
    """`tests/servers/test_pages.py` types every block of `sh` without a mark."""
    if not block.is_typed and block not in MARKED and block.language != "python":
        # output may show a command, but does not begin with one
        text = block.text.splitlines()[0] if block.language == "text" else block.text
        assert COMMAND.findall(text) == []


@pytest.mark.parametrize("block", MARKED, ids=place)
def test_a_mark_says_why_or_names_tests_that_run_in_ci(block: Block) -> None:
    if reason := block.options.get("not-run"):
        assert "run-by" not in block.options
        assert len(reason.split()) >= REASON_WORDS
        tests = re.findall(r"tests/[\w/]+\.py", reason)
    else:
        tests = block.options["run-by"].split()
        assert tests
    # each file of tests is in a group that CI runs: tests/unit/test_campaign_groups.py
    assert all((ROOT / test).is_file() for test in tests)


def test_every_make_target_in_a_block_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert {target for block in BLOCKS for target in re.findall(r"(?m)^make ([a-z-]+)", block.text)} <= targets


@pytest.mark.parametrize("block", PYTHON, ids=place)
def test_python_compiles_and_its_names_of_repot_exist(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "repot":
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "repot":
            assert hasattr(importlib.import_module("repot"), node.attr), node.attr
