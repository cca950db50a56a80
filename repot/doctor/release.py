"""The libraries of an application, which need not be those of repot's own environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repot.upstream.capabilities import supplied_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The first Celery with a setting, of those that came after 4.4.
SINCE: Mapping[str, str] = {
    "azureblockblob_base_path": "5.1",
    "azureblockblob_connection_timeout": "5.2",
    "azureblockblob_read_timeout": "5.2",
    "beat_cron_starting_deadline": "5.3",
    "beat_enable_remote_control": "5.7",
    "beat_remote_control_max_tick_age": "5.7",
    "broker_channel_error_retry": "5.3",
    "broker_connection_retry_on_startup": "5.3",
    "broker_native_delayed_delivery_queue_type": "5.5",
    "broker_pool_acquire_timeout": "5.7",
    "cassandra_bundle_path": "5.3",
    "control_queue_durable": "5.6",
    "control_queue_exclusive": "5.6",
    "database_create_tables_at_setup": "5.5",
    "database_engine_callback": "5.7",
    "event_queue_durable": "5.6",
    "event_queue_exclusive": "5.6",
    "gcs_base_path": "5.4",
    "gcs_bucket": "5.4",
    "gcs_project": "5.4",
    "gcs_ttl": "5.4",
    "redis_username": "5.1",
    "result_chord_expires": "5.7",
    "result_failure_expires": "5.7",
    "security_key_password": "5.3",
    "task_acks_on_failure": "5.7",
    "task_acks_on_timeout": "5.7",
    "task_allow_error_cb_on_chord_header": "5.3",
    "task_create_missing_queue_exchange_type": "5.6",
    "task_create_missing_queue_type": "5.6",
    "task_default_queue_type": "5.5",
    "task_repr_maxlevels": "5.7",
    "task_retry_on_worker_lost": "5.7",
    "task_store_eager_result": "5.1",
    "worker_cancel_long_running_tasks_on_connection_loss": "5.1",
    "worker_deduplicate_successful_tasks": "5.1",
    "worker_detect_quorum_queues": "5.5",
    "worker_disable_prefetch": "5.6",
    "worker_enable_prefetch_count_reduction": "5.4",
    "worker_enable_soft_shutdown_on_idle": "5.5",
    "worker_eta_task_limit": "5.6",
    "worker_log_datefmt": "5.7",
    "worker_pool_start_method": "5.7",
    "worker_soft_shutdown_timeout": "5.5",
    "worker_task_log_datefmt": "5.7",
}


_OF_TRANSPORT = "broker_transport_options."
#: Of a task; a release before 5.7 does not read it.
_RETRIES_LOST = "retry_on_worker_lost"


@dataclass(frozen=True, slots=True)
class Release:
    """What the application's libraries are and know.

    Attributes:
        python: the version of its interpreter, for example `3.8.18`; `celery`, `kombu` and `redis` are those of the
            libraries, empty if one is not installed.
        settings: the settings of its Celery, with the name of their type.
        old_names: former names of settings, with the present ones.
        task_attributes: the attributes of `celery.Task`; `task_options` are those that may be set.
        transports: the schemes of addresses that its kombu knows; `backends` are the result backends of its Celery.
        address_options: what may stand behind the ? of an address.
        tls_options: what py-amqp takes in `broker_use_ssl`.
        transport_options: the options that a transport reads, by `Capabilities.transport`.
    """

    python: str
    celery: str
    kombu: str
    redis: str
    settings: Mapping[str, str]
    old_names: Mapping[str, str]
    task_attributes: frozenset[str]
    task_options: tuple[str, ...]
    transports: frozenset[str]
    backends: frozenset[str]
    address_options: frozenset[str]
    tls_options: frozenset[str]
    transport_options: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Release:
        """Take it from a document (`repot/upstream/collector.py`)."""
        sets = ("task_attributes", "transports", "backends", "address_options", "tls_options")
        return cls(
            **{
                **document,
                **{name: frozenset(document[name]) for name in sets},
                "task_options": tuple(document["task_options"]),
                "transport_options": {kind: frozenset(names) for kind, names in document["transport_options"].items()},
            }
        )

    def with_repot(self) -> Release:
        """Return it with the settings, transport options and attributes of tasks that repot supplies."""
        options = {key.removeprefix(_OF_TRANSPORT) for key in supplied_keys() if key.startswith(_OF_TRANSPORT)}
        names = sorted(key for key in supplied_keys() if not key.startswith(_OF_TRANSPORT))
        return replace(
            self,
            task_attributes=self.task_attributes | {_RETRIES_LOST},
            settings={**dict.fromkeys(names, "any"), **self.settings},
            transport_options={kind: found and found | options for kind, found in self.transport_options.items()},
        )
