"""The build of the docs site fails on what a reader would stumble over."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = """# A site

A [page](other.md#a-heading), [`repot/errors.py`](../repot/errors.py), [the code](../repot/errors.py), [all](../repot),
and [what changed](../CHANGELOG.md).

```
[untouched](../repot/errors.py)
```

1. A step:

    ```sh not-run="needs a cluster; \"quoted\"" exit=4
    kubectl get pods
    ```

```sh terminal=one
repot up
```

```text
the first line is whole
```
"""
#: Files outside docs/ and their pages.
EXTRA = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))["OUTSIDE"]
OTHER = "# Another page\n\n## A heading\n"


def build(
    directory: Path, *, index: str = INDEX, nav: tuple[str, ...] = ("index.md", "other.md")
) -> subprocess.CompletedProcess[str]:
    """Build a site of two pages as `make site` builds the whole one."""
    # the configuration of the whole site, but for its pages
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    assert "scripts/site_hooks.py" in config
    config = config.replace("scripts/site_hooks.py", str(ROOT / "scripts" / "site_hooks.py"))
    entries = "".join(f"  - {page}\n" for page in (*nav, *EXTRA.values()))
    (directory / "mkdocs.yml").write_text(f"{config}\nnav:\n{entries}")
    (directory / "docs").mkdir()
    (directory / "docs" / "site.css").touch()
    (directory / "docs" / "index.md").write_text(index)
    (directory / "docs" / "other.md").write_text(OTHER)
    (directory / "repot").mkdir()
    (directory / "repot" / "errors.py").touch()
    for name in EXTRA:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("# A page\n\n")
    (directory / "CHANGELOG.md").write_text("# Changelog\n\n[A page](docs/other.md)\n")
    (directory / "CONTRIBUTING.md").write_text("# Contributing\n\n[The code](repot/errors.py)\n")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_links_of_the_repository_become_links_of_the_site(tmp_path: Path) -> None:
    """A file that the site does not have is named; a block of code stays."""
    built = build(tmp_path)
    assert built.returncode == 0, built.stderr
    html = (tmp_path / "site" / "index.html").read_text()
    for expected in (
        '<a href="other/#a-heading">page</a>',
        ", <code>repot/errors.py</code>, the code (<code>repot/errors.py</code>), all (<code>repot</code>)",
        '<a href="changelog/">what changed</a>',
        "[untouched](../repot/errors.py)",
        "the first line is whole",
    ):
        assert expected in html, expected
    for option in ("```", "not-run", "exit=4", "terminal="):
        assert option not in html
    assert html.count('<div class="highlight"><pre>') - html.count("[untouched]") == 3
    assert '<a href="../other/">A page</a>' in (tmp_path / "site" / "changelog" / "index.html").read_text()
    contributing = (tmp_path / "site" / "contributing" / "index.html").read_text()
    assert "The code (<code>repot/errors.py</code>)" in contributing


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[x](gone.md)", "gone.md"),
        ("[x](other.md#gone)", "#gone"),
        ("[x](../repot/gone.py)", "gone.py"),
        ("[x](../CHANGELOG.md#gone)", "#gone"),
        ('<script src="https://cdn.example.com/x.js"></script>', "cdn.example.com"),
        ("![x](https://cdn.example.com/x.png)", "cdn.example.com"),
    ],
)
def test_a_broken_link_and_another_host_fail_the_build(tmp_path: Path, text: str, named: str) -> None:
    built = build(tmp_path, index=f"{INDEX}\n{text}\n")
    assert built.returncode != 0
    assert named in built.stderr
    assert built.stderr.count("WARNING -") == 1


def test_a_page_without_a_place_fails_the_build(tmp_path: Path) -> None:
    built = build(tmp_path, index="# A site\n", nav=("index.md",))
    assert built.returncode != 0
    assert "other.md" in built.stderr
