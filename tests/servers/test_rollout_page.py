"""The page of a rollout in a browser, on real brokers and a real store; and what its server refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import axe_core_python  # type: ignore[import-untyped]
import pytest

from repot.config import BrokerUrl, ExplicitSettings, WorkerSettings, inherited_environment
from repot.errors import MoveStopped
from repot.migrate.addresses import Address, Addresses
from repot.migrate.control import Limits
from repot.migrate.move import Order, open_move
from repot.migrate.translate import Rules
from repot.rollout.acts import act
from repot.rollout.page import server as page_server
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.side import Side
from repot.testbed import free_port
from repot.waiting import wait_until
from support import forked
from support.browser import Reader, open_browser
from support.moves import consume, declare, task
from support.reports import HEALTHY, Reports, between, environment, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Remote

    from repot.rollout.phases import Observed
    from repot.routing.record import RolloutRecord
    from repot.testbed import Server

PASSWORD = "planted-password"
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()

pytestmark = pytest.mark.xdist_group("rollout page")


@pytest.fixture(scope="module")
def settings(redis: Server, rabbitmq: Server) -> WorkerSettings:
    return between(redis, rabbitmq, redis)


@pytest.fixture(scope="module")
def rollout(settings: WorkerSettings) -> Iterator[Rollout]:
    """A rollout whose first step was judged."""
    with open_rollout(settings.rollout, settings) as opened:
        reports, stop = Reports(opened, settings.queue_names[0]), Event()

        def show(record: RolloutRecord, seen: Observed) -> None:
            if record.phase == Phase.CANARY and seen.judgement and seen.judgement.verdict == "pass":
                stop.set()

        plan = plan_of(opened, bake_s=3600.0)
        reports.totals[Side.TARGET] |= {"cost:spent:shop.charge": 10_000_000, "cost:repeated:shop.charge": 2_500_000}
        opened.begin(plan, "ann")
        with reports.each_second(**HEALTHY):
            opened.controller().run(stop, show)
            # the page says which workers report now
            yield opened


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


class Served:
    """`repot rollout serve`, as a process."""

    def __init__(self, settings: WorkerSettings, *options: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "repot", "rollout", "serve", settings.rollout, "--port", str(self.port)]
        variables = inherited_environment(without=("WORKER_",)) | environment(settings)  # type: ignore[arg-type]
        self.process = forked.start([*command, *options], env=variables, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        self.token = self.process.stderr.readline().rpartition(" ")[2].strip() if "--acts" in options else ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Ask as any program on this machine may."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return abs(code)


@pytest.fixture(scope="module")
def served(rollout: Rollout) -> Iterator[Served]:
    found = Served(rollout.settings, "--acts")
    wait_until(
        lambda: found.process.poll() is not None or _answers(found), within_s=30, what=f"it serves: {found.said}"
    )
    yield found
    assert found.stop() == signal.SIGTERM


def _answers(served: Served) -> bool:
    try:
        return served.ask("GET", "/")[0] == 200
    except OSError:
        return False


@pytest.fixture
def reader(browser: Remote, served: Served) -> Reader:
    return Reader(browser, served.address)


SHOWN = "document.getElementById('connection').textContent === 'Live.'"


def see(reader: Reader, directory: Path, name: str) -> None:
    """Keep a picture of the whole page, to look at."""
    found = reader.tells("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    (directory / f"{name}.png").write_bytes(b64decode(found["data"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (320, 700)])
def test_the_page_shows_the_rollout_and_axe_finds_nothing(
    reader: Reader, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    reader.opens(width=width, height=height, scheme=scheme)
    reader.waits(SHOWN, "a state is shown")
    see(reader, tmp_path, f"page-{width}-{scheme}")
    assert "Canary: 50 % of the new work goes to the target" in reader.text("#phase")
    assert reader.text("#steps [aria-current=step]") == "50 %"
    assert "No controller is at work" in reader.text("#attention")
    assert len(reader.shown("#workers tbody tr")) == 2
    assert ["Cost of repeated runs", "0", "2.5"] in cells(reader, "#sides")
    assert not reader.shown("#moves-section")
    assert reader.complaints == []
    # nothing is wider than the screen, but what scrolls by itself
    assert reader.asks("document.documentElement.scrollWidth") <= width
    reader.browser.execute_script(AXE)
    found = reader.browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


#: A rate before the second look, and one of a move that stands still.
UNMOVED = ("\N{EN DASH}", "0")


def cells(reader: Reader, table: str) -> list[list[str]]:
    """The words of a table's rows."""
    found: list[list[str]] = reader.asks(
        f"[...document.querySelectorAll('{table} tbody tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    )
    return found


def test_a_move_under_way_is_shown_with_its_rate(
    browser: Remote, rollout: Rollout, redis: Server, rabbitmq: Server
) -> None:
    source, target = rollout.urls()
    queue, stop = f"backlog-{rollout.name}", Event()
    addresses = Addresses(Address(source), Address(target, {}, rabbitmq.management_url))
    limits = Limits(rate=100, window=20)
    order = Order("backlog", addresses, {queue: queue}, Rules(queues={queue: queue}), limits)
    served = Served(rollout.settings, "--move", "backlog")
    mover = Thread(target=move_until, args=(order, rollout.settings, stop))
    try:
        for server in (redis, rabbitmq):
            declare(server, queue)
        with closing(redis.open()) as broker:
            broker.publish(queue, [task(place) for place in range(2000)])
        mover.start()
        reader = Reader(browser, served.address)
        wait_until(lambda: _answers(served), within_s=30, what="it serves")
        reader.opens()

        def shown() -> bool:
            found = cells(reader, "#moves")
            return bool(found) and found[0][:2] == ["backlog", str(source)] and found[0][4] not in UNMOVED

        wait_until(shown, within_s=20, what="the move has a rate")
        ((_, _, state, moved, rate, *_),) = cells(reader, "#moves")
        assert (state, int(moved.replace(",", "")) > 0) == ("moving", True)
        assert 0 < int(rate) < 400
        assert reader.complaints == []
    finally:
        stop.set()
        mover.join()
        served.stop()


def test_a_move_that_a_change_of_the_plan_begins_is_shown(redis: Server, rabbitmq: Server) -> None:
    """The page was opened before."""
    settings = between(redis, rabbitmq, redis)
    with open_rollout(settings.rollout, settings) as opened:
        opened.begin(plan_of(opened), "ann")
        served = Served(settings)
        try:
            wait_until(lambda: _answers(served), within_s=30, what="it serves")
            assert moves_of(served) == []
            opened.change_plan(lambda plan: replace(plan, moves=True), "ann", "a long backlog")
            order = opened.watch(opened.store.plan()).carrying.order(Side.SOURCE)
            with open_move(order, settings) as move:
                move.run(Event())
            wait_until(lambda: moves_of(served) == [order.name], within_s=20, what="the move is shown")
        finally:
            served.stop()


def moves_of(served: Served) -> list[str]:
    """The moves in the state that a viewer gets."""
    status, text, _ = served.ask("GET", "/api/state")
    assert status == 200, text
    return [one["name"] for one in json.loads(text)["moves"]]


def test_a_move_in_the_other_direction_is_found_as_well(redis: Server) -> None:
    """Between two Redis, its journal is on the one that it leads to."""
    name, queue = f"back-{uuid4().hex}", f"backlog-{uuid4().hex}"
    other = f"{redis.url.removesuffix('/0')}/5"
    settings = ExplicitSettings(
        rollout=name, broker_url=redis.url, rollout_target=other, lease_store=redis.url, queue_names=(queue,)
    )
    ends = Address(BrokerUrl.parse(other)), Address(BrokerUrl.parse(redis.url))
    order = Order(name, Addresses(*ends), {queue: queue}, Rules(queues={queue: queue}))
    with open_move(order, settings) as move:
        move.source.publish(queue, [task(place) for place in range(3)])
        move.run(Event())
    with open_rollout(name, settings) as rollout, closing(rollout.moves(Plan(queues=(queue,)), [name])) as moves:
        for _ in range(2):
            assert [(name, 3)] == [(one["name"], one["delivered"]) for one in moves.look()]


def move_until(order: Order, settings: WorkerSettings, stop: Event) -> None:
    with open_move(order, settings) as move, suppress(MoveStopped):
        move.run(stop)


def test_what_waits_on_a_broker_is_shown_in_the_next_states(reader: Reader, rollout: Rollout) -> None:
    reader.opens()
    reader.waits(SHOWN, "a state is shown")
    queue = rollout.settings.queue_names[0]
    with closing(rollout.watch(rollout.store.plan()).sides[Side.SOURCE].connect()) as broker:
        broker.publish(queue, [task(place) for place in range(7)])
        waiting = "[...document.querySelectorAll('#queues tbody tr')].map((one) => one.innerText.split('\\t'))"
        shown = f"{waiting}.some(([queue, side, ready]) => side === 'source' && ready === '7')"
        wait_until(lambda: reader.asks(shown), within_s=30, what="seven messages wait", poll_s=0.2)
        # a look may be shared once, so that two states are two seconds at most but for the time of a look
        assert page_server._EVERY_S + page_server._SHARED_S < 2
        consume(broker, queue)


def test_ages_go_on_while_the_page_is_not_current(reader: Reader, served: Served) -> None:
    reader.opens()
    reader.waits(SHOWN, "a state is shown")
    os.kill(served.process.pid, signal.SIGSTOP)
    try:
        reader.waits("document.getElementById('connection').className === 'stale'", "it is not current")
        ages = (reader.text("#workers td:last-child"), reader.text("#timing"), reader.text("#judged"))
        for age, selector in zip(ages, ("#workers td:last-child", "#timing", "#judged"), strict=True):
            wait_until(partial(lambda one, old: reader.text(one) != old, selector, age), within_s=20, what=selector)
    finally:
        os.kill(served.process.pid, signal.SIGCONT)
    reader.waits(SHOWN, "it is current again")


def test_a_person_pauses_and_resumes_by_keyboard_and_is_in_the_history(
    reader: Reader, rollout: Rollout, served: Served
) -> None:
    reader.opens()
    reader.waits(SHOWN, "a state is shown")

    def ask_for(name: str, token: str) -> None:
        reader.asks(f"document.querySelector('[data-act={name}]').focus()")
        reader.browser.switch_to.active_element.send_keys("\n")
        for field, words in (("who", "ann"), ("why", f"{name} <b>it</b>"), ("token", token)):
            one = reader.one(f"#{field}")
            one.clear()
            one.send_keys(words)
        reader.clicks("#go")

    ask_for("pause", "wrong")
    reader.waits("document.getElementById('refused').textContent.includes('the token is wrong')", "it is refused")
    reader.one("#token").clear()
    reader.one("#token").send_keys(served.token)
    reader.clicks("#go")
    reader.waits("document.getElementById('phase').textContent.includes('Paused at 50 %')", "it is paused")
    assert "A person must decide: paused by ann (page), pause <b>it</b>" in reader.text("#attention")
    record = rollout.record()
    assert (record.phase, record.who, record.why) == (Phase.PAUSED, "ann (page)", "pause <b>it</b>")
    reader.waits("!document.querySelector('[data-act=pause]') || document.querySelector('[data-act=resume]')", "acts")
    ask_for("resume", served.token)
    reader.waits("document.getElementById('phase').textContent.includes('Canary')", "it goes on")
    assert [one for one in reader.complaints if "403" not in one] == []


def allowed(served: Served, **changes: str) -> dict[str, str]:
    return {"Origin": served.address, "X_Repot_Token": served.token, "Content_Type": "application/json", **changes}


def asked(rollout: Rollout, **changes: Any) -> str:
    given = {"act": "pause", "who": "eve", "why": "mischief", "generation": rollout.record().generation, **changes}
    return json.dumps(given)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"X_Repot_Token": "guess"}, 403),
        ({"X_Repot_Token": ""}, 403),
        ({"Host": "evil.example"}, 400),
    ],
    ids=str,
)
def test_an_act_that_is_not_the_pages_own_is_refused(
    served: Served, rollout: Rollout, headers: dict[str, str], status: int
) -> None:
    before = rollout.record()
    assert status == served.ask("POST", "/api/act", asked(rollout), **allowed(served, **headers))[0]
    assert before == rollout.record()


@pytest.mark.parametrize(
    "changes", [{"act": "delete"}, {"who": ""}, {"why": "x" * 501}, {"generation": None}, {"act": ["pause"]}], ids=str
)
def test_an_act_that_says_nothing_clear_is_refused(served: Served, rollout: Rollout, changes: dict[str, Any]) -> None:
    before = rollout.record()
    assert served.ask("POST", "/api/act", asked(rollout, **changes), **allowed(served))[0] == 422
    assert before == rollout.record()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "body",
    [
        "[" * 9_000,
        nested(5_000),
        f'{{"act": {nested(4_900)}, "generation": 1, "who": "eve", "why": "mischief"}}',
        f'{{"act": {nested(900)}, "generation": 1, "who": "eve", "why": "mischief"}}',
        f'{{"act": "pause", "generation": {nested(900)}, "who": "eve", "why": "mischief"}}',
        f'{{"act": "pause", "generation": 1, "who": {nested(900)}, "why": "mischief"}}',
        '{"act": "pause", "generation": 1, "who": "eve", "why": "half of a pair: \\ud800"}',
        '{"act": "pause", "generation": true, "who": "eve", "why": "mischief"}',
    ],
    ids=["unclosed", "deep", "a deep act", "an act", "a generation", "a name", "a surrogate", "a boolean"],
)
def test_a_body_that_means_nothing_is_refused(served: Served, rollout: Rollout, body: str) -> None:
    before = rollout.record()
    # the generation of the record, so that nothing but the body is wrong
    body = body.replace('"generation": 1', f'"generation": {before.generation}')
    status, text, _ = served.ask("POST", "/api/act", body, **allowed(served))
    assert (status, "error" in json.loads(text)) == (422, True)
    assert before == rollout.record()


def test_open_pages_are_bounded_and_do_not_stop_the_others(served: Served) -> None:
    def opened(stack: ExitStack) -> int:
        connection = stack.enter_context(closing(HTTPConnection("127.0.0.1", served.port, timeout=60)))
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        return answer.status if answer.status != 200 or answer.readline() else 0

    with ExitStack() as stack:
        # a browser may have the page open
        statuses = [opened(stack) for _ in range(104)]
        assert {200, 503} == {*statuses}
        assert statuses.index(503) >= 96
        for path in ("/", "/charts.js", "/page.js", "/page.css", "/api/state", "/api/series"):
            assert served.ask("GET", path)[0] == 200
    with ExitStack() as again:
        wait_until(lambda: opened(again) == 200, within_s=60, what="a page may be opened again")


def test_pages_that_are_opened_at_once_are_bounded_as_well(served: Served) -> None:
    request = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=60)) for _ in range(160)
        ]
        for one in opened:
            one.sendall(request)
        statuses = Counter(one.recv(12).decode().split()[1] for one in opened)
        assert statuses["200"] <= page_server._MOST_STREAMS
        assert served.ask("GET", "/api/state")[0] == 200


@pytest.mark.promise
def test_an_act_on_a_state_that_has_changed_is_refused(served: Served, rollout: Rollout) -> None:
    seen = asked(rollout)
    act(rollout, "pause", "ann")
    status, text, _ = served.ask("POST", "/api/act", seen, **allowed(served))
    assert (status, "has changed meanwhile" in text) == (409, True)
    act(rollout, "resume", "ann")


@pytest.mark.promise
def test_without_acts_the_page_only_shows(rollout: Rollout) -> None:
    served = Served(rollout.settings)
    try:
        wait_until(lambda: _answers(served), within_s=30, what="it serves")
        assert 'id="acts"' not in served.ask("GET", "/")[1]
        assert served.ask("POST", "/api/act", asked(rollout), **allowed(served))[0] == 403
        policy = served.ask("GET", "/")[2]["content-security-policy"]
        assert "default-src 'none'" in policy
    finally:
        assert served.stop() == signal.SIGTERM


def test_the_report_is_one_file_without_passwords(
    rollout: Rollout, browser: Remote, tmp_path: Path, settings: WorkerSettings
) -> None:
    act(rollout, "pause", "ann", "a look </script><script>throw 1</script>")
    act(rollout, "resume", "ann")
    path = tmp_path / "report.html"
    target = settings.rollout_target
    assert target is not None
    secret = settings.replace(rollout_target=re.sub("//[^@]*@", f"//guest:{PASSWORD}@", target.reveal()))
    assert PASSWORD in str(environment(secret))
    command = [sys.executable, "-m", "repot", "rollout", "report", settings.rollout, "--html", str(path), "--json"]
    variables = inherited_environment(without=("WORKER_",)) | environment(secret)  # type: ignore[arg-type]
    ran = forked.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert PASSWORD not in ran.stdout + ran.stderr + path.read_text()
    assert settings.rollout == json.loads(ran.stdout)["state"]["name"]
    reader = Reader(browser, path.as_uri())
    reader.opens()
    assert "a look </script>" in reader.text("#history")
    # the broker refused the wrong password: that is unknown, not empty
    assert "unknown" in reader.text("#queues")
    assert len(reader.all("#charts svg[role]")) == 6
    assert reader.complaints == []
    see(reader, tmp_path, "report")
