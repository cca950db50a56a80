"""TLS options in the URL of a Redis, which kombu before 5.5 hands to redis-py as the words that stand there.

`ssl_check_hostname=false` is then a word, which counts as true: Python refuses the check without a certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu import connection
from kombu.utils import url

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A worker cannot connect to a rediss:// server whose certificate is not verified."

POINTS = (
    Point(
        "kombu.utils.url:parse_url", Failure.SILENT, _BREAKS, contains=('if key == "ssl_check_hostname":',), since="5.5"
    ),
    Point(
        "kombu.utils.url:parse_url", Failure.SILENT, _BREAKS, "(url)", ("query['ssl'][key] = query[key]",), until="5.5"
    ),
    Point("kombu.connection:parse_url", Failure.LOUD, _BREAKS),
)

_OPTION = "ssl_check_hostname"


def read_truth_values() -> None:
    """Let kombu read the option as a truth value, in this process."""
    if _OPTION not in url.parse_url.__code__.co_consts:
        wrap_once(connection, "parse_url", _with_truth_values)


def _with_truth_values(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_url(text: str) -> Any:
        found = parse(text)
        options = found.get("ssl")
        if isinstance(options, dict) and isinstance(value := options.get(_OPTION), str):
            options[_OPTION] = value.lower() not in {"false", "0", "no", ""}
        return found

    return parse_url
