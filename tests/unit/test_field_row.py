"""The row of the field report that a script prints for a project's checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "field_row.py"
SHOP = "from celery import Celery\napp = Celery('shop', broker='redis://h/0')\n@app.task\ndef charge(order): ...\n"


def test_a_row_has_what_the_doctor_found_and_the_checkout_is_as_before(tmp_path: Path) -> None:
    checkout, document = tmp_path / "project", tmp_path / "found.json"
    checkout.mkdir()
    (checkout / "shop.py").write_text(SHOP)
    command = [sys.executable, str(SCRIPT), str(checkout), "-A", "shop", "--save", str(document), "--header"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names, _, cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines())
    row, found = dict(zip(names, cells, strict=True)), json.loads(document.read_text())
    assert (row["project"], row["broker"], row["tasks"]) == ("project", "Redis", "1")
    for column, severity in (("errors", "error"), ("warnings", "warning"), ("infos", "info")):
        assert str(sum(one["severity"] == severity for one in found["findings"])) == row[column]
    assert float(row["s"]) > 0
    assert [path.name for path in checkout.iterdir()] == ["shop.py"]


def test_what_cannot_be_judged_is_no_row(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, "-A", "shop"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended with" in done.stderr
