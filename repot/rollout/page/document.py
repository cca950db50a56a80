"""The page's document, script and style; or all of it with the data in one file."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

#: The live page: nothing but its own files, and no other page may show it in a frame.
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: One file, from a disk or a mail: it contains what it needs, and connects to nothing.
_FILE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)

#: In the order in which they run.
SCRIPTS = ("charts.js", "page.js")


def asset(name: str) -> str:
    """Return the text of a script, or of `page.css`."""
    return (files("repot.rollout.page") / "templates" / name).read_text()


def live_document(name: str, *, acts: bool) -> str:
    """Return the document of a live page; with `acts` it has the buttons."""
    return _render(name=name, acts=acts, data="", policy="", script="", style="")


def report(shown: dict[str, Any], series: list[dict[str, Any]]) -> str:
    """Return a whole rollout as one file: its last state and its series."""
    data = json.dumps({"state": shown, "series": series})
    return _render(
        name=shown["name"],
        acts=False,
        # "</script>" in a text would end the element
        data=data.replace("<", "\\u003c"),
        policy=_FILE_POLICY,
        script="\n".join(map(asset, SCRIPTS)),
        style=asset("page.css"),
    )


def _render(**values: object) -> str:
    # the only values that are not escaped are our own files, and JSON without "<"
    environment = Environment(
        loader=PackageLoader("repot.rollout.page"), autoescape=select_autoescape(["html"]), trim_blocks=True
    )
    return environment.get_template("page.html").render(**values)
