"""A third broker adapter: one module and one registration, as `docs/write-a-broker-adapter.md` shows it."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from repot.brokers import inspect, open_broker
from repot.brokers.browse import Discard, Forward, Keep
from repot.brokers.message import Message
from repot.brokers.registry import Adapter, register, unregister
from repot.cli.main import main
from repot.config import BrokerUrl, broker_kinds
from repot.config.broker_kinds import BrokerKind
from repot.config.endpoints import endpoints
from repot.errors import BrokerUnreachable, ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers import Broker
    from repot.brokers.browse import Decision

PAGE = Path(__file__).parents[2] / "docs" / "write-a-broker-adapter.md"


def install(directory: Path, module: str, text: str) -> None:
    """Write a distribution with an entry point, as pip would."""
    (directory / f"{module}.py").write_text(text)
    information = directory / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{broker_kinds.ENTRY_POINTS}]\n{module} = {module}\n")


@pytest.fixture
def _adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the adapter of the page."""
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    install(tmp_path, "repot_inmemory", example[1])
    monkeypatch.syspath_prepend(tmp_path)
    yield
    broker_kinds._loaded_plugins.discard("repot_inmemory")
    if module := sys.modules.pop("repot_inmemory", None):
        unregister(module.ADAPTER)


@pytest.fixture
def broker(_adapter: None) -> Iterator[Broker]:
    with closing(open_broker(BrokerUrl.parse("inmemory://shop"))) as found:
        yield found


def message(place: int) -> Message:
    headers = {"id": f"id-{place}", "task": "shop.pay", "place": place}
    return Message(b"[[], {}, {}]", "application/json", "utf-8", headers)


def test_the_port_works_on_a_broker_that_repot_does_not_know(broker: Broker) -> None:
    assert broker.depth("q").is_drained
    assert all(one.is_confirmed for one in broker.publish("q", [message(place) for place in range(5)]))
    assert (broker.depth("q").ready, broker.depth("q").unacked) == (5, 0)

    def decide(message: Message) -> Decision:
        place = message.headers["place"]
        return Keep() if place == 0 else Discard() if place == 2 else Forward(message, "other")

    browsed = broker.browse("q", decide)
    assert (browsed.kept, browsed.discarded, browsed.forwarded) == (1, 1, 3)
    assert broker.depth("other").ready == 3


@pytest.mark.usefixtures("_adapter")
def test_its_facts_are_inspected() -> None:
    facts = inspect(endpoints("inmemory://shop"))
    assert (facts.product, facts.version) == ("InMemory", "1.0")


def test_a_command_works_on_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_BROKER_URL", "inmemory://shop")
    broker.publish("celery.dead", [message(7)])
    found = CliRunner().invoke(main, ["dlq", "list", "--json"])
    assert found.exit_code == 0, found.output
    assert [one["id"] for one in json.loads(found.stdout)] == ["id-7"]


def test_an_unknown_scheme_is_refused_without_the_adapter() -> None:
    with pytest.raises(ValueError, match="has the scheme 'inmemory'"):
        BrokerUrl.parse("inmemory://shop")


def test_an_adapter_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "repot_broken", "raise ImportError('no library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigInvalid, match=r"adapter 'repot_broken' .* no library"):
        BrokerUrl.parse("broken://shop")


def test_a_scheme_has_one_adapter() -> None:
    taken = Adapter(BrokerKind("Other", ("redis",)), lambda *_: None, lambda *_: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="'redis' belongs to Redis"):
        register(taken)


def test_a_kind_without_an_adapter_cannot_be_opened() -> None:
    kind = BrokerKind("Paper", ("paper",))
    broker_kinds.register_kind(kind)
    try:
        with pytest.raises(BrokerUnreachable, match="paper://shop has no server that repot can ask"):
            open_broker(BrokerUrl.parse("paper://shop"))
    finally:
        broker_kinds.unregister_kind(kind)
