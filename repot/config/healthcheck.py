"""The settings of the health sidecar, filled from `HEALTHCHECK_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, SecretStr
from pydantic_settings import SettingsConfigDict

from repot.config.probe import DEFAULT_PULSE_TIMEOUT_S
from repot.config.settings import EnvironmentSettings, OptionalBroker, empty_is_none

#: What every variable's name begins with.
HEALTHCHECK_PREFIX = "HEALTHCHECK_"


class HealthcheckSettings(EnvironmentSettings):
    """How the sidecar listens and judges; `repot.config.load_healthcheck` makes it. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix=HEALTHCHECK_PREFIX, env_ignore_empty=True)

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. Beyond loopback it is for the network of the worker alone: 0.0.0.0 in a "
        "container whose port is published on loopback.",
    )
    port: int = Field(9000, ge=1, le=65535, description="Port to listen on.")
    token: Annotated[SecretStr | None, BeforeValidator(empty_is_none)] = Field(
        None,
        description="Whoever shows it (`Authorization: Bearer ...`) sees the details of /health; others than those on "
        "this machine do not without it.",
    )
    node: str = Field(
        "",
        description="Name of the worker to judge, as `celery worker -n` says it, %h for the host's name; empty for the "
        "only one that beats in WORKER_PULSE_FOLDER.",
    )
    cache: NonNegativeFloat = Field(
        1, le=60, description="An answer may be this old; however many ask meanwhile, the worker is asked once."
    )
    pulse_timeout: PositiveFloat = Field(
        DEFAULT_PULSE_TIMEOUT_S,
        description="A worker whose pulse is older is not alive. At least four times WORKER_SOCKET_TIMEOUT: a dead "
        "link holds its event loop up for as long.",
    )
    ping_timeout: PositiveFloat = Field(
        2, le=60, description="Wait this long for the worker's answer, and as long for the broker's."
    )
    stall: PositiveFloat = Field(
        60,
        description="A worker with a free process that received nothing for this long, while tasks wait in its queues, "
        "does not consume.",
    )

    other_broker_url: OptionalBroker = Field(
        None,
        description="Another broker whose queues are counted as well, by the worker's names: the one a move leaves, or "
        "goes to. It is asked for counts alone.",
    )

    @property
    def deadline_s(self) -> float:
        """No answer takes longer: a question, another on a new connection, and what belongs to them."""
        return 3 * self.ping_timeout
