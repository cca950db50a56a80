"""The settings of the health sidecar, filled from `HEALTHCHECK_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, SecretStr
from pydantic_settings import SettingsConfigDict

from repot.config.probe import DEFAULT_STATUS_TIMEOUT_S
from repot.config.settings import EnvironmentSettings, Names, OptionalBroker, empty_is_none

#: With 48 series for a task, 4,800 for a worker.
DEFAULT_METRICS_TASKS = 100

#: The prefix of every variable.
HEALTHCHECK_PREFIX = "HEALTHCHECK_"


class HealthcheckSettings(EnvironmentSettings):
    """Settings of the sidecar, read by `repot.config.load_healthcheck`. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix=HEALTHCHECK_PREFIX, env_ignore_empty=True)

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. Use another address than loopback only on a private network: 0.0.0.0 in a "
        "container whose port is published on loopback.",
    )
    port: int = Field(9000, ge=1, le=65535, description="Port to listen on.")
    allowed_hosts: Names = Field(
        (),
        description="Names that requests may have in their Host header, separated by commas: the name by which "
        "Prometheus or a load balancer reaches the sidecar; * allows any. IP addresses, localhost and "
        "HEALTHCHECK_HOST are always allowed; any other name is refused, because a web page can let its own name "
        "lead here (DNS rebinding).",
    )
    token: Annotated[SecretStr | None, BeforeValidator(empty_is_none)] = Field(
        None,
        description="A client that sends it (`Authorization: Bearer ...`) receives the details of /health; without "
        "it only clients on this machine do.",
    )
    node: str = Field(
        "",
        description="Name of the worker to check, as in `celery worker -n`; %h is the host's name. Empty: the only "
        "worker with a status file in WORKER_STATUS_DIR.",
    )
    cache: NonNegativeFloat = Field(
        1, le=60, description="Reuse an answer for this long: many requests ask the worker once."
    )
    status_timeout: PositiveFloat = Field(
        DEFAULT_STATUS_TIMEOUT_S,
        description="A worker with an older status file is not alive. At least four times WORKER_SOCKET_TIMEOUT: a "
        "dead connection blocks its event loop for that long.",
    )
    ping_timeout: PositiveFloat = Field(
        2, le=60, description="Wait this long for the worker's answer, and again for the broker's."
    )
    stall: PositiveFloat = Field(
        60,
        description="A worker with a free process that receives no task for this long while tasks wait in its queues "
        "counts as stalled.",
    )

    metrics_tasks: int = Field(
        DEFAULT_METRICS_TASKS,
        ge=0,
        description="Metrics have series of their own for so many tasks, those that the worker received first; the "
        "others count together as (other). A task has 48 series.",
    )

    other_broker_url: OptionalBroker = Field(
        None,
        description="A second broker on which queues with the worker's names are also counted: the source or the "
        "target of a move; by default the other side of a rollout. It is only asked for counts.",
    )

    @property
    def deadline_s(self) -> float:
        """Return the longest time for an answer in seconds: a request, a second on a new connection, and overhead."""
        return 3 * self.ping_timeout
