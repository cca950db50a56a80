"""What the user of a command has stated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.config.urls import ServiceUrl


def http_address(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """Return what an option gives, if that is an http or https address or nothing; shows no secret of another one."""
    return _http_url(given).reveal() if given else given


def http_addresses(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Do so for an option that may be repeated."""
    return tuple(_http_url(one).reveal() for one in given)


def _http_url(given: str) -> ServiceUrl:
    from repot.config.settings import http_url

    try:
        return http_url(given)
    except ValueError as error:
        message = f"the address {error}"
        raise click.BadParameter(message) from None


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a command's parameters that its user has stated."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
