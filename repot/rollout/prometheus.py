"""Criteria of a rollout that a Prometheus answers: comparisons in PromQL.

A query must compare with `bool`, as in `rate(errors_total[1m]) < bool 0.05`: a sample of 0 fails the step. Nothing
returned, and no answer, are inconclusive: a query of a metric that does not exist would pass for ever.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from http.client import HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from repot.config.http_address import HttpAddress
from repot.rollout.judge import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import ServiceUrl

#: Prometheus scrapes every 15 s or so: an answer counts for this time.
_AGAIN_S = 5.0
_TIMEOUT_S = 3.0


class PrometheusCriteria:
    """The queries of one plan."""

    def __init__(self, url: ServiceUrl | None, queries: Iterable[str]) -> None:
        """Ask the Prometheus at an http or https address, with the user and password that it names."""
        self._queries = tuple(queries)
        self._server = HttpAddress.of(url.reveal() if url else "")
        self._last: tuple[float, list[Finding]] | None = None

    def findings(self) -> list[Finding]:
        """Return what each query says; asks again after five seconds."""
        if self._last is None or monotonic() - self._last[0] >= _AGAIN_S:
            self._last = (monotonic(), [self._finding(query) for query in self._queries])
        return self._last[1]

    def obstacles(self) -> list[str]:
        """Return what is wrong with queries that say nothing; a rollout does not begin with them."""
        return [one.reason for one in self.findings() if one.verdict is Verdict.INCONCLUSIVE]

    def _finding(self, query: str) -> Finding:
        try:
            return _judged(query, self._ask(query))
        except HTTPError as error:
            cause = f"{error.code} {error.reason}"
            with suppress(ValueError, TypeError, KeyError, OSError):
                cause = json.load(error)["error"]
            reason = f"Prometheus refuses {query!r}: {cause}"
        except (OSError, HTTPException) as error:
            reason = f"Prometheus does not answer {query!r}: {error}"
        except (ValueError, TypeError, KeyError, IndexError) as error:
            reason = f"the answer to {query!r} is not Prometheus's: {error!r}"
        return Finding("prometheus", Verdict.INCONCLUSIVE, reason)

    def _ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each sample."""
        address = f"{self._server.address}/api/v1/query?{urlencode({'query': query})}"
        # S310: the setting's address is http or https
        request = Request(address, headers=self._server.headers)  # noqa: S310
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as response:
            data: Any = json.load(response)["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]


def _judged(query: str, samples: list[tuple[dict[str, str], float]]) -> Finding:
    if not samples:
        return Finding("prometheus", Verdict.INCONCLUSIVE, f"Prometheus has no sample for {query!r}")
    if any(math.isnan(value) for _, value in samples):
        return Finding("prometheus", Verdict.INCONCLUSIVE, f"a sample of {query!r} is not a number")
    if any(value not in (0, 1) for _, value in samples):
        reason = f"{query!r} is not a comparison: write it with bool, as in `rate(errors_total[1m]) < bool 0.05`"
        return Finding("prometheus", Verdict.INCONCLUSIVE, reason)
    wrong = [_labelled(labels) for labels, value in samples if not value]
    if wrong:
        return Finding("prometheus", Verdict.FAIL, f"Prometheus: {query!r} is not so{''.join(wrong[:5])}")
    return Finding("prometheus", Verdict.PASS, f"Prometheus: {query!r} is so")


def _labelled(labels: dict[str, str]) -> str:
    return f" for {{{', '.join(f'{name}={value!r}' for name, value in sorted(labels.items()))}}}" if labels else ""
