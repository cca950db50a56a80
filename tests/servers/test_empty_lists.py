"""A list with nothing in it says what was read: a wrong name must not look like an empty queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from repot.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

#: The words of a command, and what it says: {broker} and {store} are addresses.
LISTS = (
    ("dlq list", "no dead letters in celery.dead, mail.dead on {broker}"),
    ("dlq list --task shop.charge", "no dead letters that match in celery.dead, mail.dead on {broker}"),
    ("dlq list --queue mail", "no dead letters in mail.dead on {broker}"),
    ("dlq stats", "no dead letters in celery.dead, mail.dead on {broker}"),
    ("inflight list", "no worker that answered holds a task of any queue of {broker}"),
    ("inflight list --queue mail", "no worker that answered holds a task of mail of {broker}"),
    ("leases list", "no idempotency records in {store}, under the prefix none"),
    ("leases list --unknown-outcome", "no idempotency records that match in {store}, under the prefix none"),
    ("leases reap --as done", "0 with an unknown outcome in {store}, under the prefix none"),
    ("leases jobs", "0 jobs with an expired lease in {store}, under the prefix none"),
    ("outbox list", "0 waiting; 0 delayed; 0 parked, in {store}, under the prefix none"),
    ("move status never --from {broker} --to {other}", "no journal of a move 'never' on {broker} or {other}"),
)


@pytest.mark.parametrize(("words", "said"), LISTS)
def test_a_list_with_nothing_in_it_names_what_was_read(
    words: str, said: str, own: Server, redis: Server, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    variables = {
        "WORKER_BROKER_URL": own.url,
        "WORKER_LEASE_STORE": store,
        "WORKER_LEASE_PREFIX": "none",
        "WORKER_QUEUE_NAMES": "celery,mail",
    }
    names = {"broker": own.url, "other": redis.url, "store": store}
    CliRunner().invoke(main, ["store", "migrate", "--execute"], env=variables)
    done = CliRunner().invoke(main, words.format(**names).split(), env=variables)
    assert (1 if words.startswith("move") else 0) == done.exit_code, done.output
    assert said.format(**names) in done.stderr
    assert done.stdout == ""
