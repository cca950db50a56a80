"""Tell a webhook what becomes of a rollout: each change of its record, and a step that waits for a person.

The body is JSON with a `text`, as the webhooks of Slack, Mattermost and Teams take it; the headers make it a CloudEvent
(1.0, binary mode), as Argo Events and Knative take it. A thread of its own sends: a receiver that is slow or away
never holds up the controller. What was sent is kept in the lease store, so that the next controller goes on after it.
An event is sent again if its answer was lost: its `ce-id` is the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from http.client import HTTPException
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from kombu.utils.functional import retry_over_time

from repot.config.http_address import HttpAddress
from repot.errors import RepotError
from repot.logs import get_logger
from repot.masking import masked
from repot.rollout.phases import Phase
from repot.rollout.rollout import open_rollout
from repot.rollout.steps import waiting_step
from repot.routing.store import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.rollout.rollout import Rollout
    from repot.routing.record import RolloutRecord

log = get_logger(__name__)

_EVERY_S, _TIMEOUT_S = 1.0, 5.0
#: Attempts for one event: 1, 3, 5, ... seconds apart, up to 30; a quarter of an hour in all.
_ATTEMPTS, _FIRST_PAUSE_S, _LONGER_BY_S, _LONGEST_PAUSE_S = 40, 1, 2, 30
#: A controller that ends waits so long for what is to be sent.
_LAST_S = 10.0
#: Answers after which the same request may be taken later; another refusal stays one.
_LATER = (408, 425, 429)
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Notification:
    """An event: `kind` is "changed" or "waits", `id` is the same whenever it is sent."""

    kind: str
    id: str
    record: RolloutRecord
    text: str
    needs_person: bool

    def request(self, url: str) -> Request:
        """Return the request that tells a webhook."""
        shown = self.record.as_dict()
        body = {"text": self.text, "rollout": shown.pop("name"), **shown, "needs_person": self.needs_person}
        address = HttpAddress.of(url)
        headers = {
            "Content-Type": "application/json",
            "ce-specversion": "1.0",
            "ce-type": f"repot.rollout.{self.kind}",
            "ce-source": f"/repot/rollouts/{quote(self.record.name)}",
            "ce-id": self.id,
            "ce-time": datetime.fromtimestamp(self.record.updated_at, UTC).isoformat(),
        }
        data = json.dumps(masked(body)).encode()
        # S310: the setting's address is http or https
        return Request(address.address + "/" * url.endswith("/"), data, headers | address.headers, method="POST")  # noqa: S310


class Notifier:
    """Sends the events of one rollout to webhooks for the duration of a `with`."""

    def __init__(self, rollout: Rollout, urls: Iterable[str]) -> None:
        """Prepare. Addresses are http or https, and hold secrets: they are not shown."""
        self._rollout = rollout
        self._stopping, self._deadline = Event(), float("inf")
        self._receivers = [Receiver(url, self._go_on) for url in urls]
        self._threads = [
            Thread(target=self._tell_on, args=(one,), name="repot-rollout-notify", daemon=True)
            for one in self._receivers
        ]

    def __enter__(self) -> None:
        """Begin with the state of now: a webhook learns where the rollout is, and not all that was before.

        Raises:
            RolloutNotFound: there is no such rollout.
            StoreUnreachable: the store is unavailable.
        """
        for receiver, thread in zip(self._receivers, self._threads, strict=True):
            receiver.begin(self._rollout)
            thread.start()

    def __exit__(self, *_: object) -> None:
        """Send what is left, for ten seconds at most."""
        self._deadline = monotonic() + _LAST_S
        self._stopping.set()
        for one in self._threads:
            one.join(max(0.0, self._deadline - monotonic()) + _TIMEOUT_S)

    def _tell_on(self, receiver: Receiver) -> None:
        # a store's connection belongs to one thread
        with open_rollout(self._rollout.name, self._rollout.settings) as rollout:
            last = is_away = False
            while not last:
                # what changed before the end is sent after it
                last = self._stopping.wait(_EVERY_S)
                try:
                    receiver.tell(rollout)
                    is_away = False
                except _Stopped:
                    log.warning("%s did not get all", receiver.host, extra={"action": "rollout_untold"})
                    return
                except RepotError as error:
                    if not is_away:
                        details = (receiver.host, error.message)
                        log.warning("%s learns nothing: %s", *details, extra={"action": "rollout_untold"})
                    is_away = True

    def _go_on(self) -> None:
        if monotonic() > self._deadline:
            raise _Stopped


class _Stopped(Exception):
    """The controller ends."""


class Receiver:
    """One webhook, and what it was told."""

    def __init__(self, url: str, go_on: Any) -> None:  # noqa: ANN401 - a callable that may raise
        """Take its address; `go_on` is called before each attempt and each second between them, and may raise."""
        self._url, self._go_on = url, go_on
        #: What may be shown of it: the path of a webhook is a secret.
        self.host = f"the webhook at {urlsplit(url).hostname}"
        self._field = blake2b(url.encode(), digest_size=8).hexdigest()

    def begin(self, rollout: Rollout) -> None:
        """Begin with the state of now, if it was told nothing yet.

        Raises:
            RolloutNotFound: there is no such rollout.
            StoreUnreachable: the store is unavailable.
        """
        rollout.lease_store.put_first(_key(rollout), self._field, f"{rollout.record().generation - 1} 0")

    def tell(self, rollout: Rollout) -> None:
        """Send what is new.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        generations = rollout.lease_store.field(_key(rollout), self._field) or "0 0"
        changed, waited = map(int, generations.split())
        for event in events(rollout, changed, waited):
            self._send(event)
            changed = max(changed, event.record.generation)
            waited = event.record.generation if event.kind == "waits" else waited
            rollout.lease_store.put(_key(rollout), {self._field: f"{changed} {waited}"})

    def _send(self, notification: Notification) -> None:
        """Send an event; one that the webhook does not take is logged, and the next one follows."""
        try:
            retry_over_time(
                lambda: self._attempt(notification),
                (OSError, HTTPException),
                max_retries=_ATTEMPTS,
                interval_start=_FIRST_PAUSE_S,
                interval_step=_LONGER_BY_S,
                interval_max=_LONGEST_PAUSE_S,
                callback=self._go_on,
            )
        except (OSError, HTTPException, _RefusedForGood) as error:
            details = (self.host, notification.text, _reason(error))
            log.warning("%s does not take %r: %s", *details, extra={"action": "rollout_untold"})

    def _attempt(self, notification: Notification) -> None:
        try:
            with build_opener(_NoRedirect()).open(notification.request(self._url), timeout=_TIMEOUT_S):
                return
        except HTTPError as error:
            if error.code < _SERVER_ERROR and error.code not in _LATER:
                raise _RefusedForGood(_reason(error)) from None
            raise


class _RefusedForGood(Exception):
    """The same request would be refused again."""


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would be followed by a request without the body."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401
        """Follow none."""


def _key(rollout: Rollout) -> str:
    return f"{key_of(rollout.settings.lease_prefix, rollout.name)}:told"


def events(rollout: Rollout, changed: int, waited: int) -> Iterator[Notification]:
    """Yield what happened after the generations that were sent already, the first one first.

    Raises:
        StoreUnreachable: the store is unavailable.
    """
    history = rollout.records.history(rollout.name)
    for record in history:
        if record.generation > changed:
            yield _event("changed", record, record.why, needs_person=record.phase == Phase.PAUSED)
    if history and history[-1].generation > waited:
        look, now = rollout.observations.looks.last(), rollout.tally.now()
        if why := waiting_step(history, rollout.store.plan(), look, now):
            yield _event("waits", history[-1], why, needs_person=True)


def _event(kind: str, record: RolloutRecord, why: str, *, needs_person: bool) -> Notification:
    # a rollout of the same name may have had this generation before
    id_ = f"{record.generation}-{int(record.updated_at * 1000)}{'-waits' if kind == 'waits' else ''}"
    asks = "; it waits for a person" if needs_person else ""
    text = f"rollout {record.name}: {record.phase} at {record.weights.default:.0%} by {record.who}: {why}{asks}"
    return Notification(kind, id_, record, text, needs_person)


def _reason(error: Exception) -> str:
    return f"{error.code} {error.reason}" if isinstance(error, HTTPError) else str(masked(str(error)))
