"""The routes of jobs, asked over HTTP as clients ask."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import pytest
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from jsonschema import Draft202012Validator
from redis import Redis

from repot.errors import JobNotFound, NotJobOwner
from repot.idempotency.lease_store import RedisLeaseStore
from repot.submission import Jobs, Status
from repot.submission.router import job_router
from repot.testbed import LOOPBACK, free_port, redis_server
from repot.waiting import wait_until
from support.leases import TimedDatabase
from support.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from repot.testbed import Server

PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Client:
    """A caller of one tenant."""

    port: int
    tenant: str = "one"

    def ask(self, method: str, path: str, body: object = None, **headers: str | None) -> Reply:
        connection = HTTPConnection(LOOPBACK, self.port, timeout=30)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            sent = {"Content-Type": "application/json", "X-Tenant": self.tenant} | named
            connection.request(method, path, content, {name: text for name, text in sent.items() if text is not None})
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), json.loads(answer.read()))
        finally:
            connection.close()

    def submit(self, project: object, key: str = "", **arguments: object) -> Reply:
        headers = {"Idempotency-Key": key} if key else {}
        return self.ask("POST", "/renders", {"project": project, **arguments}, **headers)


#: Seconds. On a busy machine requests take longer than the lease of other tests, and a job without one frees its scope.
LEASE_S = 20
SHOP = {"app": "support.job_app", "lease": LEASE_S}


@pytest.fixture(scope="module")
def client(shop: Shop) -> Iterator[Client]:
    """A caller of a server whose jobs run."""
    with served(shop) as port:
        yield Client(port)


@pytest.fixture
def project() -> str:
    """A project of this test alone."""
    return str(uuid4())


def _tenant(request: Request) -> str | None:
    if status := request.headers.get("x-refuse"):
        raise HTTPException(int(status))
    return request.headers.get("x-tenant") or None


@contextmanager
def served(shop: Shop, **terms: Any) -> Iterator[int]:
    """A server of an application that mounts the routes; its port."""
    web = FastAPI()
    jobs = Jobs(shop.client, "jobs.render", scope="project", **{"cost": 2.5} | terms)
    web.include_router(job_router(jobs, tenant=_tenant), prefix="/renders")
    with serving(web) as port:
        yield port


@contextmanager
def serving(web: FastAPI) -> Iterator[int]:
    """A server of an application; its port."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(web, host=LOOPBACK, port=port, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, within_s=30, what="the server serves")
        yield port
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_job_is_accepted_and_followed_to_its_end(client: Client, shop: Shop, project: str) -> None:
    hold = shop.file()
    accepted = client.submit(project, hold=str(hold))
    assert accepted.status == 202
    assert f"/renders/{accepted.body['id']}" == accepted.headers["location"]
    assert accepted.headers["cache-control"] == "no-store"
    found = client.ask("GET", accepted.headers["location"])
    assert (200, accepted.body["id"], project, 1) == (
        found.status,
        found.body["id"],
        found.body["scope"],
        found.body["generation"],
    )
    hold.touch()
    wait_until(
        lambda: client.ask("GET", accepted.headers["location"]).body["status"] == "succeeded",
        within_s=20,
        what="the job is done",
    )


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_duplicate_gets_the_active_job_and_the_time_to_wait(client: Client, shop: Shop, project: str) -> None:
    """The flaw of a 409 in prose."""
    hold = shop.file()
    first = client.submit(project, hold=str(hold)).body["id"]
    wait_until(
        lambda: client.ask("GET", f"/renders/{first}").body["stage"] == "render", within_s=20, what="the job runs"
    )
    refused = client.submit(project)
    assert (refused.status, refused.headers["content-type"]) == (409, PROBLEM)
    assert 1 <= int(refused.headers["retry-after"]) <= LEASE_S + 1
    assert {"type", "title", "status", "detail", "instance", "active_job"} == set(refused.body)
    assert (
        refused.body["type"],
        refused.body["status"],
        refused.body["instance"],
    ) == ("urn:problem-type:repot:scope-conflict", 409, "/renders")
    active = refused.body["active_job"]
    assert (first, "running", "render") == (active["id"], active["status"], active["stage"])
    assert active["age_s"] > 0
    hold.touch()


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_the_same_key_gets_the_same_job_and_with_another_body_a_422(client: Client, shop: Shop, project: str) -> None:
    key, hold = str(uuid4()), shop.file()
    answers = [client.submit(project, key, hold=str(hold)) for _ in range(3)]
    assert [answer.status for answer in answers] == [202] * 3
    assert len({answer.body["id"] for answer in answers}) == 1
    other = client.submit(project, key)
    assert (
        other.status,
        other.headers["content-type"],
        other.body["type"],
    ) == (422, PROBLEM, "urn:problem-type:repot:idempotency-key-reused")
    hold.touch()
    elsewhere = Client(client.port, "two").submit(project, key)
    assert elsewhere.status == 202
    assert elsewhere.body["id"] != answers[0].body["id"]


def test_many_with_one_key_at_once_get_one_job(client: Client, shop: Shop, project: str) -> None:
    key = str(uuid4())
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: client.submit(project, key), range(32)))
    assert Counter({202: 32}) == Counter(answer.status for answer in answers)
    assert len({answer.body["id"] for answer in answers}) == 1
    shop.await_effects(project)


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_many_at_once_get_one_job_and_its_id(client: Client, shop: Shop, project: str) -> None:
    hold = shop.file()
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: client.submit(project, hold=str(hold)), range(64)))
    assert Counter({202: 1, 409: 63}) == Counter(answer.status for answer in answers)
    (accepted,) = (answer.body["id"] for answer in answers if answer.status == 202)
    assert {accepted} == {answer.body["active_job"]["id"] for answer in answers if answer.status == 409}
    audit = client.ask("GET", "/renders/refused?limit=5").body
    assert len(audit["refusals"]) == 5
    assert {accepted} == {one["active_job_id"] for one in audit["refusals"]}
    mine = next(one for one in audit["scopes"] if one["scope"] == project)
    assert (mine["refused"], mine["estimated_cost_saved"]) == (63, 157.5)
    hold.touch()


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_job_is_cancelled_once_and_frees_its_scope(client: Client, shop: Shop, project: str) -> None:
    first = client.submit(project, hold=str(shop.file())).body["id"]
    cancelled = client.ask("POST", f"/renders/{first}/cancel")
    assert (cancelled.status, cancelled.body["status"], cancelled.body["workers_notified"]) == (202, "cancelled", True)
    after = client.submit(project)
    assert (after.status, after.body["generation"]) == (202, 2)
    wait_until(
        lambda: client.ask("GET", f"/renders/{after.body['id']}").body["status"] == "succeeded",
        within_s=20,
        what="the job is done",
    )
    late = client.ask("POST", f"/renders/{after.body['id']}/cancel")
    assert (late.status, late.body["type"]) == (409, "urn:problem-type:repot:job-ended")


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_another_tenants_job_is_a_404_like_one_that_never_was(client: Client, project: str) -> None:
    first = client.submit(project).body["id"]
    other = Client(client.port, "two")
    for path in (f"/renders/{first}", f"/renders/{uuid4()}"):
        for method, more in (("GET", ""), ("POST", "/cancel")):
            found = other.ask(method, path + more)
            assert (
                found.status,
                found.headers["content-type"],
                found.body["type"],
            ) == (404, PROBLEM, "urn:problem-type:repot:job-not-found")
    assert [one for one in other.ask("GET", "/renders/refused").body["refusals"] if project in one["scope"]] == []


def test_a_request_without_a_tenant_is_refused(client: Client) -> None:
    anonymous = Client(client.port, "")
    for method, path in (("GET", "/renders/refused"), ("GET", "/renders/x"), ("POST", "/renders/x/cancel")):
        assert (
            anonymous.ask(method, path).status,
            anonymous.ask(method, path).headers["content-type"],
        ) == (403, PROBLEM)
    assert anonymous.submit("p").status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b'{"pages": 1}',
        b'{"project": ""}',
        b'{"project": null}',
        b'{"project": {"id": 7}}',
        b'{"project": "\\ud800"}',
        b'{"project": "p", "seconds": NaN}',
        b'{"project": "p", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_a_body_that_is_no_submission_is_a_400(client: Client, body: bytes) -> None:
    found = client.ask("POST", "/renders", body)
    assert (found.status, found.headers["content-type"]) == (400, PROBLEM)
    assert {"type", "title", "status", "detail", "instance"} == set(found.body)


@pytest.mark.parametrize(
    ("content_type", "said"),
    [
        (None, "no Content-Type"),
        # what curl's -d sends, and an HTML form
        ("application/x-www-form-urlencoded", "the Content-Type application/x-www-form-urlencoded"),
        ("text/plain; charset=utf-8", "the Content-Type text/plain"),
    ],
)
def test_a_body_that_does_not_say_it_is_json_is_told_so(client: Client, content_type: str | None, said: str) -> None:
    # a list, since older releases of FastAPI take an object without a Content-Type
    found = client.ask("POST", "/renders", b"[]", Content_Type=content_type)
    assert (found.status, found.headers["content-type"]) == (400, PROBLEM)
    assert f"body: the request has {said}; send the arguments" in found.body["detail"]


def test_a_key_that_is_empty_too_long_and_a_limit_that_is_none_are_400(client: Client, project: str) -> None:
    assert client.submit(project, "k" * 256).status == 400
    # a client that sends the header relies on it
    assert client.ask("POST", "/renders", {"project": project}, Idempotency_Key="").status == 400
    assert [client.ask("GET", f"/renders/refused?limit={limit}").status for limit in ("0", "all")] == [400, 400]


def test_arguments_of_any_text_reach_the_task(client: Client, project: str) -> None:
    """Half a surrogate pair is valid JSON."""
    assert client.ask("POST", "/renders", b'{"project": "%s", "hold": "\\ud800"}' % project.encode()).status == 202


_NUL, _HALF = "a\0b", "\ud800"


@pytest.mark.parametrize("store", ["redis", "postgresql"])
def test_text_that_a_database_does_not_take_is_one_answer_on_each_store(
    request: pytest.FixtureRequest, redis: Server, tmp_path: Path, store: str
) -> None:
    """NUL, and half of a surrogate pair. No store keeps arguments: they are the task's; a key is kept as its digest."""
    url = request.getfixturevalue(store).url
    shop = Shop(redis, redis, tmp_path, app="support.job_app", lease_store=url)
    if store == "postgresql":
        # makes the tables
        TimedDatabase(url).store.close()
    jobs = Jobs(shop.client, "jobs.render", scope="project")
    with served(shop) as port:
        client = Client(port)
        refused = [client.submit(text) for text in (_NUL, _HALF)]
        taken = [client.submit(str(uuid4()), hold=text) for text in (_NUL, _HALF)]
        keyed = [client.submit("keyed", key) for key in ("k\x7f\xe9", "k\x7f\xe9")]
        paths = [client.ask(*words) for words in (("GET", "/renders/a%00b"), ("POST", "/renders/a%00b/cancel"))]
    assert [(one.status, one.headers["content-type"]) for one in refused] == [(400, PROBLEM)] * 2
    assert all("printable characters" in one.body["detail"] for one in refused)
    assert [one.status for one in taken] == [202] * 2
    assert [one.status for one in keyed] == [202] * 2
    assert keyed[0].body["id"] == keyed[1].body["id"]
    assert [(one.status, one.headers["content-type"]) for one in paths] == [(404, PROBLEM)] * 2
    for text in (_NUL, _HALF):
        ids = {
            jobs.submit({"project": f"{text!a}"}, tenant=text, owner=text, idempotency_key=text).job.id for _ in "ab"
        }
        assert len(ids) == 1
        for call in (jobs.get, jobs.cancel):
            with pytest.raises(JobNotFound):
                call(text)
        assert Status.CANCELLED is jobs.cancel(ids.pop(), tenant=text, owner=text).job.status


@pytest.mark.promise
@pytest.mark.parametrize("away", ["broker_url", "lease_store"])
def test_a_server_that_is_away_is_a_503_that_says_nothing_of_it(
    redis: Server, tmp_path: Path, project: str, away: str
) -> None:
    changes: dict[str, Any] = {away: f"redis://:hunter2@{LOOPBACK}:{free_port()}/0"}
    with served(Shop(redis, redis, tmp_path, app="support.job_app", **changes)) as port:
        client = Client(port)
        for _ in range(2):
            found = client.submit(project)
            assert (found.status, found.headers["content-type"], found.headers["retry-after"]) == (503, PROBLEM, "5")
            assert "hunter2" not in str(found.body)
            assert LOOPBACK not in str(found.body)


def test_a_store_that_refuses_the_password_is_a_503_that_says_nothing_of_it(
    redis: Server, tmp_path: Path, project: str
) -> None:
    with redis_server() as store:
        settings: Any = Redis(port=store.port)
        settings.config_set("requirepass", "right")
        shop = Shop(
            redis, redis, tmp_path, app="support.job_app", lease_store=f"redis://:hunter2@{LOOPBACK}:{store.port}/0"
        )
        with served(shop) as port:
            client = Client(port)
            answers = [client.submit(project), client.ask("GET", "/renders/x"), client.ask("GET", "/renders/refused")]
        settings.close()
    assert [(one.status, one.headers["content-type"]) for one in answers] == [(503, PROBLEM)] * 3
    assert not [one for one in answers if "hunter2" in str(one.body) or "password" in str(one.body)]


@pytest.mark.parametrize(("status", "title"), [(499, "Request refused"), (401, "Unauthorized"), (599, "Server error")])
def test_a_status_that_the_applications_own_check_answers_with_is_passed_on(
    redis: Server, tmp_path: Path, status: int, title: str
) -> None:
    with served(Shop(redis, redis, tmp_path, app="support.job_app")) as port:
        found = Client(port).ask("GET", "/renders/x", X_Refuse=str(status))
    assert (status, PROBLEM, status, title) == (
        found.status,
        found.headers["content-type"],
        found.body["status"],
        found.body["title"],
    )


def test_a_record_with_fractions_and_without_a_beginning_is_answered(
    redis: Server, tmp_path: Path, project: str
) -> None:
    shop = Shop(redis, redis, tmp_path, app="support.job_app")
    records: Any = RedisLeaseStore(shop.settings).client
    with served(shop) as port:
        client = Client(port)
        first = client.submit(project).body["id"]
        (record,) = records.scan_iter(f"{shop.settings.lease_prefix}:jobs:*:job:{first}")
        records.hset(record, mapping={"done": "0.5", "total": "all", "created_at": "soon"})
        found, refused = client.ask("GET", f"/renders/{first}"), client.submit(project)
    records.close()
    assert (found.status, found.body["done"], found.body["total"], found.body["created_at"]) == (200, 0.5, None, None)
    assert (409, first) == (refused.status, refused.body["active_job"]["id"])


def test_arguments_that_the_task_does_not_take_are_a_400_where_it_is_known(
    redis: Server, tmp_path: Path, project: str
) -> None:
    shop = Shop(redis, redis, tmp_path, app="support.job_app")

    @shop.client.task(name="jobs.render", shared=False)
    def render(project: str) -> None:
        """Never called here."""

    with served(shop) as port:
        found = Client(port).submit(project, colour="blue")
        assert found.status == 400
        assert "colour" in found.body["detail"]
        # half a surrogate pair, which is valid JSON and no text that an answer can hold
        odd = Client(port).ask("POST", "/renders", b'{"project": "%s", "\\ud800": 1}' % project.encode())
        assert (odd.status, odd.headers["content-type"]) == (400, PROBLEM)
        assert r"\ud800" in odd.body["detail"]
        assert Client(port).submit(project).status == 202


def _user(x_user: Annotated[str, Header()] = "") -> str:
    return x_user


async def _later(request: Request) -> str:
    return request.headers.get("x-user", "")


def _number(request: Request) -> int | None:
    name = request.headers.get("x-user", "")
    return {"ann": 1, "bob": 2}.get(name)


class _Asked:
    """What is called, and answers later."""

    async def __call__(self, request: Request) -> str:
        return request.headers.get("x-user", "")


@pytest.mark.parametrize("owner", [Depends(_user), _later, _number, _Asked()], ids=["depends", "async", "int", "call"])
def test_an_owner_cancels_only_jobs_of_their_own(redis: Server, tmp_path: Path, project: str, owner: Any) -> None:
    shop = Shop(redis, redis, tmp_path, app="support.job_app")
    jobs = Jobs(shop.client, "jobs.render", scope="project")
    web = FastAPI()
    web.include_router(job_router(jobs, tenant=_tenant, owner=owner, prefix="/renders"))
    with serving(web) as port:
        client = Client(port)
        first = client.ask("POST", "/renders", {"project": project}, X_User="ann")
        assert (202, f"/renders/{first.body['id']}") == (first.status, first.headers["location"])
        path = f"{first.headers['location']}/cancel"
        for name in ("bob", ""):
            refused = client.ask("POST", path, X_User=name)
            assert (refused.status, refused.headers["content-type"]) == (403, PROBLEM)
        assert client.ask("POST", path, X_User="bob").body["type"] == "urn:problem-type:repot:not-job-owner"
        # whom a tenant's jobs are not hidden from sees them, and another tenant's are not there
        assert client.ask("GET", first.headers["location"], X_User="bob").body["status"] == "queued"
        assert Client(port, "two").ask("POST", path, X_User="ann").status == 404
        assert client.ask("POST", "/renders", {"project": project}).status == 403
        assert [client.ask("POST", path, X_User="ann").status for _ in range(2)] == [202, 202]


def test_a_job_without_an_owner_is_cancelled_by_the_applications_own_code(
    redis: Server, tmp_path: Path, project: str
) -> None:
    jobs = Jobs(Shop(redis, redis, tmp_path, app="support.job_app").client, "jobs.render", scope="project")
    first = jobs.submit({"project": project}).job
    for name in ("ann", ""):
        with pytest.raises(NotJobOwner):
            jobs.cancel(first.id, owner=name)
    assert Status.CANCELLED is jobs.cancel(first.id).job.status
    with pytest.raises(TypeError, match="`owner` must be a string"):
        jobs.submit({"project": project}, owner=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(("prefix", "at"), [("/", "/"), ("/renders/", "/renders"), ("/a/b", "/a/b")])
def test_a_router_with_its_prefix_and_one_at_the_root(
    redis: Server, tmp_path: Path, project: str, prefix: str, at: str
) -> None:
    jobs = Jobs(Shop(redis, redis, tmp_path, app="support.job_app").client, "jobs.render", scope="project")
    web, below = FastAPI(), FastAPI()
    web.include_router(job_router(jobs, prefix=prefix))
    below.mount("/below", web)
    with serving(below) as port:
        client = Client(port)
        first = client.ask("POST", f"/below{at}", {"project": project})
        assert first.status == 202
        found = client.ask("GET", first.headers["location"])
        assert (200, first.body["id"]) == (found.status, found.body["id"])
        assert client.ask("GET", f"/below{at.rstrip('/')}/refused").status == 200


def test_a_name_that_is_none_is_an_error_of_the_application(redis: Server, tmp_path: Path) -> None:
    """It gives no access."""
    jobs = Jobs(Shop(redis, redis, tmp_path, app="support.job_app").client, "jobs.render", scope="project")
    web = FastAPI()
    web.include_router(job_router(jobs, tenant=lambda _: True, prefix="/renders"))
    with serving(web) as port:
        connection = HTTPConnection(LOOPBACK, port, timeout=30)
        connection.request("GET", "/renders/x")
        assert connection.getresponse().status == 500
        connection.close()


def test_the_schema_of_the_routes_is_true(client: Client, shop: Shop, project: str) -> None:
    """Every answer of this server fits what its OpenAPI document says of it."""
    document = client.ask("GET", "/openapi.json").body
    paths = document["paths"]
    assert {"/renders", "/renders/refused", "/renders/{job_id}", "/renders/{job_id}/cancel"} == set(paths)
    key = str(uuid4())
    first = client.submit(project, key, hold=str(shop.file()))
    job = f"/renders/{first.body['id']}"
    answers = [
        ("/renders", "post", first),
        ("/renders", "post", client.submit(project)),
        ("/renders", "post", client.submit(project, key)),
        ("/renders/{job_id}", "get", client.ask("GET", job)),
        ("/renders/{job_id}", "get", client.ask("GET", "/renders/none")),
        ("/renders/refused", "get", client.ask("GET", "/renders/refused")),
        ("/renders/{job_id}/cancel", "post", client.ask("POST", f"{job}/cancel")),
        ("/renders/{job_id}/cancel", "post", client.ask("POST", "/renders/none/cancel")),
    ]
    assert [reply.status for _, _, reply in answers] == [202, 409, 422, 200, 404, 200, 202, 404]
    for path, method, reply in answers:
        described = paths[path][method]["responses"][str(reply.status)]
        (media,) = described["content"]
        assert reply.headers["content-type"] == media
        schema = described["content"][media]["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(reply.body)
        assert set(described.get("headers", {})) <= {name.title() for name in reply.headers}
