"""What cannot be guarded is refused when it is defined, and nothing is noted done that did not run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from celery import Celery, Task, _state, shared_task

from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid, InvalidIdempotencyKey
from repot.idempotency import (
    TASK_ID,
    Guard,
    IdempotentTask,
    Policy,
    all_but,
    fingerprint,
    idempotent,
    idempotent_task,
)
from repot.idempotency.memory_store import MemoryLeaseStore, guarded_by
from repot.submission import JobTask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

BY_ORDER = Policy(key=("order",))


@pytest.fixture
def store() -> MemoryLeaseStore:
    return MemoryLeaseStore()


@pytest.fixture
def guard(store: MemoryLeaseStore) -> Guard:
    return Guard(store, ExplicitSettings())


@pytest.fixture
def app(store: MemoryLeaseStore) -> Iterator[Celery]:
    """An application whose tasks run in this process."""
    found = Celery("test", set_as_current=False, broker="memory://", backend="cache+memory://")
    found.conf.task_always_eager = True
    with guarded_by(found, store):
        yield found


def plain(order: str, amount: int = 1) -> str:
    """An ordinary function."""
    del amount
    return order


async def coroutine(order: str) -> str:
    """What has to be awaited."""
    return order


def generator(order: str) -> Iterator[str]:
    """What has to be iterated."""
    yield order


async def asynchronous_generator(order: str) -> AsyncIterator[str]:
    """Both."""
    yield order


class Awaitable:
    """What is called and has to be awaited."""

    async def __call__(self, order: str) -> str:
        return order


class Made:
    """What a class makes."""

    @classmethod
    def make(cls, order: str) -> str:
        return order


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows of no `async def`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def run_to_its_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an ordinary function of a coroutine."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return call


# Functions


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (generator, "is a generator"),
        (asynchronous_generator, "is an asynchronous generator"),
        (partial(generator, "o"), "is a generator"),
        pytest.param(passed_on(coroutine), "wraps an async def", id="wrapped"),
        pytest.param(passed_on(passed_on(coroutine)), "wraps an async def", id="wrapped twice"),
        pytest.param(run_to_its_end(coroutine), "wraps an async def", id="run"),
        (vars(Made)["make"], "below @staticmethod"),
        (partial(plain, "o"), "has no name"),
    ],
)
def test_a_function_that_cannot_be_guarded_is_refused(guard: Guard, function: Any, words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        idempotent(guard)(function)


@pytest.mark.parametrize("function", [coroutine, partial(coroutine), Awaitable()])
def test_whatever_has_to_be_awaited_is_awaited_before_it_is_done(guard: Guard, function: Any) -> None:
    guarded = idempotent(guard, name="charge")(function)

    async def main() -> None:
        assert [await guarded("o"), await guarded("o")] == ["o", "o"]

    asyncio.run(main())


@pytest.mark.parametrize("make", [coroutine, generator, asynchronous_generator])
def test_a_body_that_did_not_run_is_not_done(guard: Guard, store: MemoryLeaseStore, make: Any) -> None:
    """No signature tells what a function returns."""

    @idempotent(guard)
    def guarded(order: str) -> Any:
        return make(order)

    for _ in range(2):
        with pytest.raises(ConfigInvalid, match="has not run"):
            guarded("o")
    (record,) = map(store.inspect, store.keys())
    assert record is not None
    assert record.state.value == "released"


def test_a_guard_belongs_into_the_parentheses() -> None:
    with pytest.raises(ConfigInvalid, match=r"plain is neither a Guard"):
        idempotent(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(key=("buyer",)), "'buyer', which is not one of its arguments: they are order, amount"),
        (Policy(key=("order", "buyer.id")), "'buyer.id', which is not one of its arguments"),
        (Policy(key=all_but("sent_at")), "'sent_at', which is not one of its arguments"),
        (Policy(key=lambda order: order), "function of its key"),
        (Policy(key=lambda order, amount, buyer: (order, amount, buyer)), "function of its key"),
        (Policy(namespace=lambda tenant: tenant), "function of its namespace"),
    ],
)
def test_a_key_of_no_argument_is_refused(app: Celery, guard: Guard, policy: Policy, words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        idempotent(guard, policy)(plain)
    with pytest.raises(ConfigInvalid, match=words):
        defined(app, plain, idempotency=policy)


def test_a_key_that_only_a_call_can_tell_is_taken(guard: Guard) -> None:
    def anything(*orders: str, **options: str) -> None:
        """Take all."""

    def named(order: str, /, *, amount: int) -> None:
        """Take one by its place and one by its name."""

    for function, key in (
        (anything, ("buyer", "orders")),
        (anything, all_but("buyer")),
        (anything, lambda orders, **options: (orders, options)),
        (named, ("order", "amount")),
        (named, lambda **all_of_them: all_of_them["order"]),
        (partial(plain, amount=3), ("order", "amount")),
        (max, ("anything",)),
    ):
        idempotent(guard, Policy(key=key), name="charge")(function)


# Tasks


def defined(app: Any, function: Any, **options: Any) -> Any:
    """A task, made as the application finalizes: no sooner does Celery look at it."""
    task = app.task(**{"base": IdempotentTask, "shared": False} | options)(function)
    app.finalize()
    return task


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (coroutine, {}, "it is async def"),
        (coroutine, {"bind": True}, "it is async def"),
        (coroutine, {"base": JobTask}, "it is async def"),
        (generator, {}, "it is a generator"),
        (asynchronous_generator, {}, "it is an asynchronous generator"),
        (plain, {"idempotency": {"key": ("order",)}}, "idempotency is a dict, not a Policy"),
        (plain, {"idempotency": None}, "idempotency is a NoneType"),
        (plain, {"idempotency": Policy}, "idempotency is the class Policy"),
        (plain, {"bind": True, "idempotency": BY_ORDER}, "not one of its arguments: they are amount"),
        (plain, {"idempotency_key": ""}, "idempotency_key is an option of apply_async"),
        (plain, {"policy": BY_ORDER}, "policy=Policy.* is ignored"),
        (plain, {"transient": TimeoutError()}, "transient must be a tuple"),
        (plain, {"permanent": ["ValueError"]}, "permanent must be a tuple"),
        (plain, {"backoff": 5}, "backoff is a int"),
        (plain, {"autoretry_for": (ValueError,), "idempotency": Policy(key=("buyer",))}, "'buyer'"),
    ],
)
def test_a_task_that_cannot_be_guarded_is_refused_as_the_application_finalizes(
    app: Celery, function: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigInvalid, match=words) as caught:
        defined(app, function, name="shop.charge", **options)
    assert f"the task shop.charge ({__file__}:{function.__code__.co_firstlineno})" in caught.value.message


def test_all_problems_are_reported_at_once(app: Celery) -> None:
    with pytest.raises(ConfigInvalid, match=r"'buyer'.*async def.*backoff"):
        defined(app, coroutine, idempotency=Policy(key=("buyer",)), backoff=1)


def test_a_class_of_tasks_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigInvalid, match=r"shop\.Charge .*test_definition.*it is async def"):

        class Charge(IdempotentTask):
            name = "shop.Charge"

            async def run(self, order: str) -> str:
                return order

    class Library(IdempotentTask):
        """What has no body yet."""

        abstract = True
        idempotency = BY_ORDER

    with pytest.raises(ConfigInvalid, match="'order', which is not one of its arguments: they are buyer"):

        class Pay(Library):
            def run(self, buyer: str) -> str:
                return buyer


@pytest.fixture
def nothing_shared() -> Iterator[None]:
    """Whatever is shared meanwhile is not, later."""
    finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
    before = set(finalizers)
    yield
    finalizers.intersection_update(before)


@pytest.mark.usefixtures("nothing_shared")
def test_a_shared_task_is_refused_as_an_application_takes_it() -> None:
    # at once, where an application is finalized already
    with suppress(ConfigInvalid):
        shared_task(base=IdempotentTask, idempotency=Policy(key=("buyer",)), name="shop.shared")(plain)
    with pytest.raises(ConfigInvalid, match=r"shop\.shared"):
        Celery("test", set_as_current=False).finalize()


def test_what_annotations_make_of_a_task_is_refused(app: Celery) -> None:
    app.conf.task_annotations = {"shop.charge": {"idempotency": Policy(key=("buyer",))}}
    with pytest.raises(ConfigInvalid, match="'buyer'"):
        defined(app, plain, name="shop.charge")


def caused(error: BaseException) -> BaseException:
    """What Python up to 3.11 wraps."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error


def test_a_policy_that_nothing_follows_is_refused(app: Celery) -> None:
    """It guarded nothing, in silence."""
    app.task(name="shop.charge", idempotency=BY_ORDER, shared=False)(plain)
    with pytest.raises((ConfigInvalid, RuntimeError)) as caught:
        app.finalize()
    assert isinstance(caused(caught.value), ConfigInvalid)
    assert f"the task shop.charge ({__file__}:" in str(caused(caught.value))
    assert "has a policy that nothing follows" in str(caused(caught.value))
    with pytest.raises((ConfigInvalid, RuntimeError)):

        class Charge(Task):  # type: ignore[type-arg,unused-ignore]
            idempotency = BY_ORDER


def test_what_can_be_guarded_is_taken(app: Celery) -> None:
    class Chosen(IdempotentTask):
        @property
        def idempotency(self) -> Policy:  # type: ignore[override]
            return BY_ORDER

    def bound(self: Any, order: str) -> str:
        assert self.fencing_token
        return order

    def of_any(*orders: str, **more: str) -> str:
        return (orders or tuple(more.values()))[0]

    tasks = [
        defined(app, run_to_its_end(coroutine), name="a", idempotency=BY_ORDER),
        defined(app, plain, name="b", base=Chosen),
        defined(app, plain, name="c", autoretry_for=(ValueError,), idempotency=BY_ORDER),
        defined(app, bound, name="d", bind=True, idempotency=BY_ORDER),
        defined(app, of_any, name="e", idempotency=Policy(key=("order",))),
        idempotent_task(BY_ORDER, app=app, name="f", shared=False)(plain),
    ]
    for task in tasks:
        assert [task.delay(order="o").get(), task.delay(order="o").get()] == ["o", "o"]


def test_a_task_whose_body_did_not_run_fails_and_may_come_again(app: Celery, store: MemoryLeaseStore) -> None:
    task = defined(app, passed_on(coroutine), name="shop.charge")
    with pytest.raises(ConfigInvalid, match=r"shop\.charge returned a coroutine, whose body has not run"):
        task.delay("o").get()
    (record,) = map(store.inspect, store.keys())
    assert record is not None
    assert record.state.value == "released"


def test_an_instrument_in_the_place_of_a_body_changes_no_key(app: Celery, store: MemoryLeaseStore) -> None:
    task = defined(app, plain, idempotency=BY_ORDER)
    assert task.delay("o").get() == "o"
    body = task.run

    def measured(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    task.run = measured
    assert task.delay("o", 2).get() == "o"
    assert len(store.keys()) == 1


@pytest.mark.parametrize("key", ["", "  ", True, 1.5, object(), b"o"])
def test_a_key_that_many_calls_would_share_is_refused_when_it_is_given(app: Celery, key: Any) -> None:
    task = defined(app, plain)
    with pytest.raises(InvalidIdempotencyKey, match="idempotency key"):
        task.apply_async(("o",), idempotency_key=key)
    with pytest.raises(InvalidIdempotencyKey, match="idempotency key"):
        task.s("o").set(idempotency_key=key).apply_async()
    with pytest.raises(InvalidIdempotencyKey, match="idempotency key"):
        fingerprint("shop.charge", plain, ("o",), {}, given=key)


@pytest.mark.parametrize("key", ["o", 0, 7, UUID(int=1)])
def test_a_key_of_a_caller(app: Celery, store: MemoryLeaseStore, key: Any) -> None:
    task = defined(app, plain)
    for again in (key, str(key)):
        assert task.apply_async(("o",), idempotency_key=again).get() == "o"
    assert len(store.keys()) == 1


# Keys of all arguments but some


def anything(order: object, *rest: object, at: object = None, **more: object) -> None:
    """Take all."""


def but(*args: Any, paths: tuple[str, ...] = ("at",), **kwargs: Any) -> str:
    return fingerprint("t", anything, args, kwargs, key=all_but(*paths)).key


def test_all_arguments_but_some() -> None:
    assert but("o", at=1) == but("o", at=2) == but("o")
    assert but("o", at=1) != but("p", at=1)
    assert but("o", 1) != but("o", 2)
    assert but("o", trace=1, paths=("trace",)) == but("o", trace=2, paths=("trace",)) == but("o", paths=("trace",))
    assert but({"id": 1, "at": 1}, paths=("order.at",)) == but({"id": 1, "at": 2}, paths=("order.at",))
    assert but({"id": 1, "at": 1}, paths=("order.at",)) != but({"id": 2, "at": 1}, paths=("order.at",))
    assert but({"id": 1}, paths=("order.at", "at")) == but({"id": 1, "at": 2}, at=3, paths=("order.at", "at"))
    assert but("o") != fingerprint("t", anything, ("o",), {}).key


def test_an_argument_left_out_hides_no_other() -> None:
    def positional(a: int, /, at: int = 0, **more: object) -> None:
        """Takes `a` twice."""

    def made(*args: int, **kwargs: int) -> str:
        return fingerprint("t", positional, args, kwargs, key=all_but("at")).key

    assert made(1, a=2) != made(2, a=2) != made(2, a=3)


@pytest.mark.parametrize("paths", [(), ("",), (7,)])
def test_all_but_takes_names(paths: Any) -> None:
    with pytest.raises(ConfigInvalid, match="all_but takes names"):
        all_but(*paths)


# Classes behind the guard, and the decorator


class Audited(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """Counts its runs."""

    abstract = True
    runs: list[tuple[str, Any]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs.append((str(self.request.id), args))
        return super().__call__(*args, **kwargs)


def test_a_class_behind_the_guard_is_called_once_for_each_effect(app: Celery) -> None:
    seen: list[Any] = []

    class Both(IdempotentTask, Audited):
        abstract = True
        runs: list[tuple[str, Any]] = []  # noqa: RUF012 - a class of a test

    def charge(self: Any, order: str) -> str:
        seen.append((self.request.id, self.fencing_token > 0, self.lease.is_held))
        self.ensure_lease_held()
        return order

    task = defined(app, charge, bind=True, base=Both)
    first = task.delay("o")
    assert [first.get(), task.delay("o").get()] == ["o", "o"]
    assert [(first.id, ("o",))] == Both.runs
    assert [(first.id, True, True)] == seen
    # a direct call has no lease, and Celery pushes a request of its own
    task.run = lambda order: order
    assert task("p") == "p"
    assert len(Both.runs) == 2


def test_a_decorator_for_tasks(app: Celery) -> None:
    @idempotent_task(Policy(key=TASK_ID), app=app, bind=True, name="shop.charge", shared=False)
    def charge(self: Any, order: str) -> int:
        del order
        return int(self.fencing_token)

    class Own(IdempotentTask):
        abstract = True
        idempotency = BY_ORDER

    own = idempotent_task(app=app, base=Own, name="shop.own", shared=False)(plain)
    assert isinstance(app.tasks["shop.charge"], IdempotentTask)
    assert charge.delay("o").get() > 0
    assert (own.idempotency, own.delay("o").get()) == (BY_ORDER, "o")


@pytest.mark.usefixtures("nothing_shared")
def test_the_decorator_makes_shared_tasks() -> None:
    idempotent_task(BY_ORDER, name="shop.shared")(plain)
    app = Celery("test", set_as_current=False)
    assert isinstance(app.tasks["shop.shared"], IdempotentTask)


def test_the_decorator_takes_a_policy_and_a_class_that_guards() -> None:
    with pytest.raises(ConfigInvalid, match="takes a Policy"):
        idempotent_task(plain)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="Audited is not an IdempotentTask"):
        idempotent_task(base=Audited)  # type: ignore[arg-type]
