"""Reading an application, and the errors of one that cannot be read."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from repot.doctor.collect import DoctorRequest, collect_facts
from repot.doctor.config import DoctorConfig
from repot.doctor.typos import UnreadNames
from repot.errors import AppFailed, AppNotFound, ConfigInvalid
from support.judging import judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.doctor.facts import Facts


_NUMBERS = itertools.count()
_APPLICATION = """\
from celery import Celery
app = Celery("shop", broker="redis://localhost:6379/0", set_as_current=False)
"""


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Facts]:
    """Read an application with this source after its first lines."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def reading(text: str, name: str = "app") -> Facts:
        module = f"written{next(_NUMBERS)}"
        (tmp_path / f"{module}.py").write_text(_APPLICATION + text)
        return collect_facts(DoctorRequest(f"{module}:{name}"), DoctorConfig(tmp_path))

    return reading


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ("'nowhere_to_be_found'", "No module named 'nowhere_to_be_found'"),
        ("{'task_acks_late': True, 'result_expires': 3, 'CELERYD_CONCURRENCY': 3}", "Cannot mix new and old"),
    ],
    ids=["missing", "mixed"],
)
def test_a_configuration_that_cannot_be_read_is_an_error(
    read: Callable[..., Facts], configuration: str, said: str
) -> None:
    """Celery reads it when it is first used, long after the application's module was imported."""
    with pytest.raises(AppFailed, match=said):
        read(f"app.config_from_object({configuration})")


def test_a_name_that_is_not_in_the_module_is_not_found(read: Callable[..., Facts]) -> None:
    with pytest.raises(AppNotFound, match="has no 'application'"):
        read("", "application")


def test_a_module_that_lacks_something_else_fails(read: Callable[..., Facts]) -> None:
    """The name is there, and what the module itself asks for is not."""
    with pytest.raises(AppFailed, match=r"AttributeError: .* no attribute 'tsak'"):
        read("@app.tsak\ndef bill(): ...")


@pytest.mark.parametrize(
    ("options", "longest_s"),
    [
        ("", 180),
        ("default_retry_delay=20", 20),
        ("retry_kwargs={'countdown': 30}", 30),
        ("retry_kwargs={'max_retries': 0}", 0),
        ("retry_backoff=True", 4),
        ("retry_backoff=5, max_retries=5", 80),
        ("retry_backoff=True, retry_kwargs={'max_retries': 9}", 256),
        ("retry_backoff=True, max_retries=5000", 600),
        ("retry_backoff=True, retry_backoff_max=7200, max_retries=None", 7200),
    ],
)
def test_the_longest_wait_of_an_automatic_retry(read: Callable[..., Facts], options: str, longest_s: float) -> None:
    found = read(f"@app.task(shared=False, autoretry_for=(OSError,), {options})\ndef bill(): ...")
    assert [longest_s] == [task.countdown_s for task in found.tasks]


@pytest.mark.parametrize(
    ("options", "call", "longest_s"),
    [
        ("", "self.retry()", 180),
        ("default_retry_delay=7200", "self.retry(exc=ValueError())", 7200),
        ("default_retry_delay=7200", "self.retry(countdown=60)", 60),
        ("default_retry_delay=7200, max_retries=0", "self.retry()", 0),
        ("default_retry_delay=7200", "self.retry(**{'countdown': 60})", 0),
        ("default_retry_delay=7200", "bill.apply_async()", 0),
    ],
)
def test_a_retry_without_a_countdown_waits_for_the_default_delay(
    read: Callable[..., Facts], options: str, call: str, longest_s: float
) -> None:
    found = read(f"@app.task(shared=False, bind=True, {options})\ndef bill(self):\n    {call}")
    assert [longest_s] == [task.countdown_s for task in found.tasks]


SITE = """{
    'SECRET_KEY': 'x', 'SECURITY_PASSWORD_SALT': 'x', 'REDIS_URL': 'x', 'REDIS_HOST': 'x', 'DATABASE_URL': 'x',
    'CACHE_TYPE': 'x', 'TIME_ZONE': 'x', 'AWS_ACCESS_KEY_ID': 'x', 'MONGODB_SETTINGS': 'x', 'rabbit_host': 'x',
    'redis_url': 'x', 'cache_folder': 'x',
}"""


def test_names_of_the_site_are_its_own(read: Callable[..., Facts]) -> None:
    """A site's whole configuration, or the helpers of a module, come along with Celery's."""
    assert read(f"app.conf.update({SITE})").unread.unknown == {}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TASK_ACKS_LATE", "task_acks_late"),
        ("Task_time_limit", "task_time_limit"),
        ("CELERY_RESULT_EXPIRES", "result_expires"),
        ("CELERYD_TASK_ACKS_LATE", "task_acks_late"),
        ("CELERYD_FORCE_EXECV", ""),
        ("CELERY_REDIS_MAX_CONNECTION", "redis_max_connections"),
        ("ACCEPT_CONTENT", "accept_content"),
        ("redis_max_connection", "redis_max_connections"),
        ("task_default_expires", "expires=... on each task; there is no such setting"),
    ],
)
def test_names_that_are_meant_for_celery_are_not(read: Callable[..., Facts], written: str, meant: str) -> None:
    assert {written: meant} == read(f"app.conf.update({{{written!r}: 5}})").unread.unknown


def test_celery_s_own_translation_of_an_argument_is_no_old_name(read: Callable[..., Facts]) -> None:
    """Beside old names Celery stores `Celery(broker=...)` as BROKER_URL."""
    found = read("app.conf.update({'CELERY_RESULT_BACKEND': 'redis://localhost:6379/1'})")
    assert found.unread.old == {"CELERY_RESULT_BACKEND": "result_backend"}
    written = read("app.conf.update({'CELERY_ACKS_LATE': True, 'BROKER_URL': 'redis://localhost:6379/1'})")
    assert {"CELERY_ACKS_LATE", "BROKER_URL"} == written.unread.old.keys()


def test_an_unread_name_with_the_effective_value_is_accepted(read: Callable[..., Facts]) -> None:
    """A site keeps CELERY_BROKER_URL in its configuration and hands it to the constructor itself."""
    assert read("app.conf.update({'CELERY_BROKER_URL': 'redis://localhost:6379/0'})").unread.unknown == {}
    found = read("app.conf.update({'CELERY_BROKER_URL': 'redis://elsewhere:6379/0'})")
    assert found.unread.unknown == {"CELERY_BROKER_URL": "broker_url"}


@pytest.mark.parametrize(
    ("lines", "hidden"),
    [
        ("app.conf.broker_url = 'redis://given/1'", {}),
        ("app.conf.broker_url = 'redis://other/1'", {"broker_url": "CELERY_BROKER_URL"}),
        ("app.conf.result_backend = 'redis://given/1'", {"broker_url": "CELERY_BROKER_URL"}),
        ("import repot; repot.configure(app)", {}),
    ],
    ids=["the same", "another", "without a variable", "repot's"],
)
def test_a_variable_that_hides_another_address_is_found(
    read: Callable[..., Facts], monkeypatch: pytest.MonkeyPatch, lines: str, hidden: dict[str, str]
) -> None:
    """One that states what the configuration states, too, is how many projects state it."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://given/1")
    assert hidden == read(lines).overriding


#: A Django project: its own names beside Celery's namespace.
NAMESPACE = """
from types import SimpleNamespace
app.config_from_object(SimpleNamespace(CELERY_WORKER_PREFETCH_MULTIPLIER=2, {}), namespace='CELERY')
"""


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("CELERYD_PREFETCH_MULTIPLIER=2", UnreadNames()),
        (
            "CELERYD_PREFETCH_MULTIPLIER=4",
            UnreadNames(shadowed={"CELERYD_PREFETCH_MULTIPLIER": "CELERY_WORKER_PREFETCH_MULTIPLIER"}),
        ),
        ("CELERY_SOFT_TIME_LIMIT=60", UnreadNames(unknown={"CELERY_SOFT_TIME_LIMIT": "task_soft_time_limit"})),
        ("CELERY_WORKER_MASCOT='cat'", UnreadNames(of_no_release=["CELERY_WORKER_MASCOT"])),
        ("CELERY_LOG_DIR='/tmp'", UnreadNames(unknown={"CELERY_LOG_DIR": ""})),
        ("CELERY_ONCE={}", UnreadNames()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_that_is_not_read_is_of_one_sort(read: Callable[..., Facts], written: str, found: UnreadNames) -> None:
    """What promises something and does not exist is not what another library may read."""
    assert found == read(NAMESPACE.format(written)).unread


@pytest.mark.parametrize(
    ("code", "is_own"),
    [
        ("print(settings.CELERY_WORKER_MASCOT)", True),
        ("def probe(): return getattr(settings, 'CELERY_WORKER_MASCOT', None)", True),
        ("settings = {'CELERY_WORKER_MASCOT': 1}; print(settings['CELERY_WORKER_MASCOT'])", True),
        ("settings = {}; print(settings.get('CELERY_WORKER_MASCOT'))", True),
        ("CELERY_WORKER_MASCOT = 'cat'; LOGGING = {'level': CELERY_WORKER_MASCOT}", True),
        ("", False),
        # a setting's own variable, and what takes it over
        ("import os; print(os.environ.get('CELERY_WORKER_MASCOT'), os.getenv('CELERY_WORKER_MASCOT'))", False),
        ("import os; os.environ['CELERY_WORKER_MASCOT'] = ''; print(os.environ['CELERY_WORKER_MASCOT'])", False),
        ("CELERY_WORKER_MASCOT = settings.CELERY_WORKER_MASCOT", False),
        ("settings.CELERY_WORKER_MASCOT = 'dog'", False),
    ],
)
def test_a_name_that_the_applications_code_reads_is_its_own(
    read: Callable[..., Facts], code: str, *, is_own: bool
) -> None:
    """A public project's middleware read CELERY_TASK_CONTEXT_MANAGERS, which was called a setting without an effect."""
    lines = "from types import SimpleNamespace\nsettings = SimpleNamespace(CELERY_WORKER_MASCOT='cat')\n"
    lines += f"app.config_from_object(settings, namespace='CELERY')\n{code}"
    assert UnreadNames(of_no_release=[] if is_own else ["CELERY_WORKER_MASCOT"]) == read(lines).unread


def test_a_misspelt_setting_is_found_though_a_page_shows_its_value(read: Callable[..., Facts]) -> None:
    """A public project's API reports its CELERY_TASK_DEFAULT_EXPIRES, which no task ever gets."""
    lines = "from types import SimpleNamespace\nsettings = SimpleNamespace(CELERY_SOFT_TIME_LIMIT=60)\n"
    lines += "app.config_from_object(settings, namespace='CELERY')\nprint(settings.CELERY_SOFT_TIME_LIMIT)"
    assert UnreadNames(unknown={"CELERY_SOFT_TIME_LIMIT": "task_soft_time_limit"}) == read(lines).unread


def test_an_old_name_in_a_namespace_is_said_to_be_read_where_it_is(read: Callable[..., Facts]) -> None:
    """Celery 5.7 reads it. Before, a public project's CELERY_QUEUES did nothing, and its second queue did not exist."""
    # no machine has this number of processors, which is what stands there otherwise
    found = read(NAMESPACE.format("CELERYD_CONCURRENCY=1234567"))
    is_read = found.settings["worker_concurrency"].value == 1234567
    assert is_read == found.has_version("celery", 5, 7)
    if is_read:
        assert UnreadNames(old={"CELERYD_CONCURRENCY": "worker_concurrency"}) == found.unread
    else:
        assert UnreadNames(outside={"CELERYD_CONCURRENCY": "CELERY_WORKER_CONCURRENCY"}) == found.unread


def test_a_task_of_another_application_is_sent_with_a_delay(read: Callable[..., Facts]) -> None:
    found = read("def later():\n    app.send_task('billing.remind', countdown=7200)")
    assert found.longest_countdown_s() == 7200
    assert [one.finding.message for one in judge(found, "RPT102").findings] == [
        "a task is sent with a delay of 7200 s; the visibility timeout is 3600 s"
    ]


def test_tasks_have_an_order(read: Callable[..., Facts]) -> None:
    """The same in each run, so that two reports can be compared."""
    found = read("".join(f"@app.task(name={name!r}, shared=False)\ndef {name}(): ...\n" for name in "dbeca"))
    assert [task.name for task in found.tasks] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("base=IdempotentTask, idempotency=Policy(key=('buyer',))", "its key names 'buyer'"),
        # raised while a class is made, which Python up to 3.11 wraps
        ("idempotency=Policy(key=('order',))", "has a policy that nothing follows"),
    ],
    ids=["key", "base"],
)
def test_a_task_that_cannot_be_guarded_is_an_error_with_its_name_and_location(
    read: Callable[..., Facts], options: str, words: str
) -> None:
    text = (
        "from repot.idempotency import IdempotentTask, Policy\n"
        f"@app.task({options}, name='shop.charge', shared=False)\ndef charge(order): ...\n"
    )
    for more in ("", "app.finalize()\n"):
        with pytest.raises(ConfigInvalid, match=rf"shop\.charge \(.*written\d+\.py:4\) .*{words}"):
            read(text + more)
