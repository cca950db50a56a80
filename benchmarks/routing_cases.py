"""Applications as others write them, made up at random: queues, routes, selections, and what is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = ("shop.add", "shop.mail", "feeds.import.all", "media.encode", "x")
NAMES = ("celery", "other", "a.other", "b.a.other", "media", "media.fast", "ü", "two words", "100%", "a*b", "c.#", "#")
EXCHANGES = {"direct": ("d0", "d1"), "topic": ("t0",), "fanout": ("f0",), "headers": ("h0",), "quorum": ("q0",)}
KEYS = ("image", "media.image", "a.media.image", "celery", "other")
PATTERNS = ("image", "media.image", "media.#", "media.*", "*.image", "#")
#: kombu's own delays match these otherwise than a message that is not delayed, see `docs/routing.md`.
QUORUM_PATTERNS = ("image", "media.image", "other", "celery")

#: What a queue may be, and how often.
KINDS = {
    "bare": 35, "key": 15, "direct": 12, "topic": 10, "fanout": 4, "headers": 3, "several": 7,
    "limited": 5, "expiring": 3, "quorum": 5, "broadcast": 4, "transient": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One application as plain data; `token` ends its names, so that many of them may share a broker."""

    token: str
    conf: dict[str, Any]
    queues: list[dict[str, str]] | None
    mapping: bool
    routes: list[dict[str, Any]] = field(default_factory=list)
    routes_as: str = "none"
    select: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    worker: bool = True
    sends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Every queue it may come to know."""
        return [f"{name}-{self.token}" for name in NAMES]

    @property
    def exchanges(self) -> list[str]:
        """Every exchange, those included that Celery calls like a queue."""
        return [*self.names, f"tasks-{self.token}", *(f"{x}-{self.token}" for xs in EXCHANGES.values() for x in xs)]


def make(seed: int, number: int) -> Case:
    """Make the case of a number; the same seed makes the same cases."""
    random = Random(f"{seed}/{number}")  # noqa: S311 - no secret
    token = f"{seed}x{number}"
    kinds = random.choices(list(KINDS), list(KINDS.values()), k=random.randint(1, 5))
    names = random.sample(NAMES, len(kinds))
    if len(names) > 1 and _happens(random, 0.3):
        # one ends as another does
        names = ["other", "a.other", *(name for name in names if "other" not in name)][: len(kinds)]
        kinds = kinds[: len(names)]
    queues = [_queue(random, name, kind, token) for name, kind in zip(names, kinds, strict=True)]
    mapping = _happens(random, 0.3)
    if mapping:
        queues = [one for one in queues if one["kind"] in ("key", "direct", "topic", "fanout")]
    declared = queues if queues and _happens(random, 0.85) else None
    conf = _conf(random, token)

    def destination() -> dict[str, Any]:
        return _destination(random, token, declared or [], conf)

    return Case(
        token=token,
        conf=conf,
        queues=declared,
        mapping=mapping,
        routes=[destination() for _ in TASKS],
        routes_as=random.choice(("none", "dict", "pairs", "glob", "regex", "function", "list", "names")),
        select=_some(random, names, token) if _happens(random, 0.3) else None,
        exclude=_some(random, names, token) if _happens(random, 0.2) else [],
        worker=_happens(random, 0.8),
        sends=[_send(random, destination) for _ in range(7)],
    )


def _happens(random: Random, share: float) -> bool:
    return random.random() < share


def _some(random: Random, names: list[str], token: str) -> list[str]:
    return [f"{name}-{token}" for name in {random.choice(names), random.choice(NAMES)}]


def _conf(random: Random, token: str) -> dict[str, Any]:
    conf: dict[str, Any] = {"task_default_queue": f"{random.choice(('celery', 'celery', *NAMES))}-{token}"}
    if _happens(random, 0.3):
        conf["task_default_exchange"] = f"tasks-{token}"
    if _happens(random, 0.3):
        conf["task_default_exchange_type"] = random.choice(("direct", "topic", "topic", "fanout"))
    if _happens(random, 0.3):
        conf["task_default_routing_key"] = f"{random.choice(('task.default', 'other'))}-{token}"
    if _happens(random, 0.25):
        conf["task_create_missing_queues"] = False
    return conf


def _queue(random: Random, name: str, kind: str, token: str) -> dict[str, str]:
    pool = EXCHANGES.get({"several": "direct"}.get(kind, kind), ("",))
    words = PATTERNS if kind == "topic" else QUORUM_PATTERNS if kind == "quorum" else KEYS
    key = _key(random.choice(words), token)
    return {"name": f"{name}-{token}", "kind": kind, "exchange": f"{random.choice(pool)}-{token}", "key": key}


def _key(words: str, token: str) -> str:
    """A key or pattern of this case alone: its last word that is no wildcard ends with the token."""
    return re.sub(r"(\w+)(?!.*\w)", rf"\1-{token}", words)


def _destination(random: Random, token: str, queues: list[dict[str, str]], conf: dict[str, Any]) -> dict[str, Any]:
    """Where a task is sent; four times of five to what the application declares."""
    queue = f"{random.choice(NAMES)}-{token}"
    exchange = f"{random.choice([one for found in EXCHANGES.values() for one in found])}-{token}"
    key = _key(random.choice(KEYS), token)
    if _happens(random, 0.8):
        default = conf["task_default_queue"]
        queue = random.choice([default, *(one["name"] for one in queues)])
        bare = {
            "exchange": conf.get("task_default_exchange", default),
            "key": conf.get("task_default_routing_key", default),
        }
        through = random.choice(
            [bare, *(one if one["kind"] in EXCHANGES | {"several": ()} else bare for one in queues)]
        )
        exchange, key = through["exchange"], through["key"].replace("#", "fast.x").replace("*", "fast")
    return random.choice(
        (
            {"queue": queue}, {"queue": queue}, {"queue": queue},
            {"exchange": exchange, "routing_key": key}, {"exchange": exchange, "routing_key": key},
            {"exchange": exchange}, {"routing_key": key},
            {"queue": queue, "routing_key": key}, {"queue": queue, "exchange": exchange},
        )
    )  # fmt: skip


def _send(random: Random, destination: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    how = random.choice(("routed", "routed", "said", "said", "object", "same object"))
    said = {} if how == "routed" else destination()
    return {"task": random.choice(TASKS), "how": how, "said": said, "delay": random.choice((0, 0, 0.4, 1, 1.3, "eta"))}


def build(case: Case, **conf: Any) -> Celery:  # noqa: ANN401 - Celery's settings
    """Make the application anew, as its author would."""
    app = Celery(f"case-{case.token}", set_as_current=False)
    queues = None if case.queues is None else [_made(one) for one in case.queues]
    if queues is not None and case.mapping:
        app.conf.task_queues = {one["name"]: _as_options(one) for one in case.queues or ()}
    elif queues is not None:
        app.conf.task_queues = queues
    app.conf.update(**case.conf, **conf, task_publish_retry=False)
    app.conf.task_routes = _routes(case)
    return app


def _as_options(spec: dict[str, str]) -> dict[str, Any]:
    if spec["kind"] == "key":
        return {"routing_key": spec["key"]}
    return {"exchange": spec["exchange"], "exchange_type": spec["kind"], "routing_key": spec["key"]}


def _made(spec: dict[str, str]) -> Queue:
    name, kind, key = spec["name"], spec["kind"], spec["key"]
    options: dict[str, dict[str, Any]] = {
        "bare": {},
        "key": {"routing_key": key},
        "limited": {"queue_arguments": {"x-max-length": 1000}},
        "expiring": {"message_ttl": 600},
        "transient": {"durable": False},
        "quorum": {"queue_arguments": {"x-queue-type": "quorum"}, "routing_key": key},
        "headers": {"binding_arguments": {"x-match": "any", "lang": "py"}},
    }
    if kind == "broadcast":
        return Broadcast(name)
    if kind == "several":
        exchange = Exchange(spec["exchange"], "direct")
        return Queue(name, bindings=[binding(exchange, routing_key=one) for one in (key, f"{key}.2")])
    if kind in EXCHANGES:
        exchange = Exchange(spec["exchange"], "topic" if kind == "quorum" else kind)
        return Queue(name, exchange, **options.get(kind, {"routing_key": key}))
    return Queue(name, **options[kind])


def _routes(case: Case) -> Any:  # noqa: ANN401 - any of Celery's forms
    pairs = list(zip(TASKS, case.routes, strict=True))
    forms: dict[str, Any] = {
        "dict": dict(pairs),
        "names": {task: one.get("queue", case.conf["task_default_queue"]) for task, one in pairs},
        "pairs": ([*pairs],),
        "glob": {f"{task.partition('.')[0]}*": one for task, one in pairs},
        "regex": [[(re.compile(f"({task[0]}|m).*"), one) for task, one in pairs]],
        "function": [lambda name, *_args, **_rest: dict(dict(pairs)[name]) if name != "x" else None],
        "list": [{task: one} for task, one in pairs],
    }
    return forms.get(case.routes_as)
