"""A second application that is the first one but for its broker.

Celery cannot point one application at two brokers: pools, queues and routes hang on one `app.conf`. A new application
of the same class would need its constructor's arguments, and would have tasks, results and signals of its own. A copy
of the object shares them, and gets its own configuration, connections and queues.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from kombu import Queue
from kombu.pools import ProducerPool

from repot.upstream.app_state import AppState, state_of
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery
    from celery.utils.collections import ConfigurationView

_BREAKS = "During a rollout, tasks cannot be sent to the other broker, or go to the first one."

POINTS = (
    Point(
        "celery.app.base:Celery.__init__",
        Failure.SILENT,
        _BREAKS,
        contains=("self._preconf = changes or {}", "self._local = threading.local()", "self._backend_cache = None"),
    ),
    Point(
        "celery.app.base:Celery.pool",
        Failure.SILENT,
        _BREAKS,
        contains=("if self._pool is None:", "self._ensure_after_fork()"),
    ),
    Point(
        "celery.app.amqp:AMQP.producer_pool",
        Failure.SILENT,
        _BREAKS,
        contains=("if self._producer_pool is None:",),
    ),
    Point("celery.app.base:Celery.amqp", Failure.SILENT, _BREAKS, contains=("instantiate(self.amqp_cls, app=self)",)),
    Point("celery.app.base:Celery.tasks", Failure.SILENT, _BREAKS, contains=("self.finalize(auto=True)",)),
    Point("celery.app.base:Celery.finalize", Failure.SILENT, _BREAKS, contains=("if not self.finalized:",)),
    Point(
        "celery.utils.collections:ConfigurationView.__init__",
        Failure.SILENT,
        "The configuration of the first broker changes with that of the second.",
        "(self, changes, defaults=None, keys=None, prefix=None)",
        ("super().__init__(changes, *defaults)", "_keys=keys,"),
    ),
    Point("celery.utils.collections:ChainMap.key_t", Failure.LOUD, _BREAKS),
)

#: Attributes that belong to one broker, or to the first application alone.
_OWN = ("amqp", "control", "events", "pool", "send_task", "producer_or_acquire", "repot")


def sibling_of(app: Celery) -> Celery:
    """Return a copy of an application with a configuration of its own; tasks, results and signals are shared.

    It must be configured, and then given pools (`own_pools`), before it sends.
    """
    original: Any = app
    # made by now, so that both have the same
    original.backend, original.AsyncResult, original.conf.broker_url  # noqa: B018
    found: Any = object.__new__(type(app))
    found.__dict__.update({name: value for name, value in vars(app).items() if name not in _OWN})
    found._preconf = dict(original._preconf)
    found._conf = _copy_of(original.conf)
    found._pool = None
    # its tasks are the first one's, and bound to that
    found.finalized = True
    state = state_of(app)
    found.repot = AppState(applied=dict(state.applied), replaced=[dict(one) for one in state.replaced])
    return found  # type: ignore[no-any-return]


def _copy_of(conf: Any) -> ConfigurationView:
    """Return a copy with changes of its own; that of Celery before 5.7 loses the names that a setting had before."""
    # the first read makes it of one that is pending
    keys = conf._keys
    found: ConfigurationView = type(conf)(dict(conf.changes), conf.defaults, keys, conf.prefix)
    vars(found)["key_t"] = conf.key_t
    return found


def with_own_queues(app: Any) -> None:
    """Give a sibling copies of queues that are objects of the application's own: declaring them changes them."""
    queues = app.conf.task_queues
    if isinstance(queues, list | tuple | set | frozenset):
        app.conf.changes["task_queues"] = [copy(one) if isinstance(one, Queue) else one for one in queues]


def own_pools(app: Any) -> Any:
    """Give a sibling pools that it shares with no other application, and return that of connections.

    kombu's own are one for all applications, and a forked process finds its parent's connections there.
    """
    app._pool = app.connection_for_write().Pool(limit=app.conf.broker_pool_limit)
    app.amqp._producer_pool = ProducerPool(app._pool, limit=app.conf.broker_pool_limit)
    return app._pool
