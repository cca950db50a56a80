"""Which of a command's parameters its user has stated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from collections.abc import Mapping


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a command's parameters that its user has stated."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
