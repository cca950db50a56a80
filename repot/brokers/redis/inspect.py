"""Read the version, the configuration and the state of a Redis or Valkey. Nothing is written."""

from __future__ import annotations

from itertools import islice
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from repot.brokers.facts import RedisFacts, Unknown
from repot.brokers.redis.adapter import product_and_version, refusal
from repot.brokers.redis.client import open_client
from repot.errors import BrokerUnreachable
from repot.upstream.redis_start import command_name, was_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from repot.brokers.registry import ConnectOptions, InspectOptions
    from repot.config.endpoints import Endpoint

Answer = TypeVar("Answer")

#: The parameters that the doctor's rules read. One CONFIG GET each: Redis 6 takes no list.
_PARAMETERS = (
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "save",
    "timeout",
    "maxclients",
    "client-output-buffer-limit",
)

#: RabbitMQ 4 refuses larger messages (`max_message_size`, 16 MiB by default).
LARGE_BYTES = 16 << 20

_BINDINGS = "_kombu.binding."
#: A database with more keys is not searched.
_SEARCHED_KEYS = 200_000

#: How many messages at each end of a list are measured.
_MEASURED_MESSAGES = 100

#: Returns the length of the largest of them; runs in the server, so no message travels.
_MEASURE = """
local largest = 0
for index = 0, ARGV[1] - 1 do
  for _, place in ipairs({index, -1 - index}) do
    local message = redis.call('LINDEX', KEYS[1], place)
    if message then largest = math.max(largest, #message) end
  end
end
return largest
"""


def inspect(servers: Sequence[Endpoint], connect: ConnectOptions, options: InspectOptions) -> RedisFacts:
    """Return the facts of the first server that answers; of Sentinel's servers, those of their master.

    With `skip_replicas` a replica's facts are returned only if no later server is a primary.

    Raises:
        AccessRefused: user or password is wrong.
        TlsFailed: no trusted TLS connection.
        BrokerUnreachable: no server answers.
    """
    failure: BrokerUnreachable | None = None
    replica: RedisFacts | None = None
    # sentinels are asked together for one master
    for server in servers[:1] if servers[0].scheme == "sentinel" else servers:
        try:
            found = _inspect_one(server, connect, options, servers)
        except BrokerUnreachable as error:
            if type(error) is not BrokerUnreachable:
                raise
            failure = error
            continue
        if not (options.skip_replicas and found.is_replica):
            return found
        replica = replica or found
    if replica is None:
        assert failure is not None
        raise failure
    return replica


def _inspect_one(
    server: Endpoint, connect: ConnectOptions, options: InspectOptions, sentinels: Sequence[Endpoint]
) -> RedisFacts:
    """Ask by INFO, CONFIG GET, TIME and SCAN, and measure messages; what the server refuses to say is `Unknown`."""
    prefix = options.key_prefix
    with open_client(
        server,
        tls=connect.tls,
        timeout_s=connect.timeout_s,
        transport_options=connect.transport_options,
        sentinels=sentinels,
    ) as client:
        try:
            client.ping()
        except redis.RedisError as error:
            raise refusal(server, error) from error
        info = _asked(client.info, "INFO", server)
        product, version = product_and_version({} if isinstance(info, Unknown) else info)
        return RedisFacts(
            product=product,
            version=version,
            info=info,
            config=_config(client, server),
            clock_ahead_s=_asked(lambda: _clock_ahead_s(client), "TIME", server),
            exchanges=_exchanges(client, prefix),
            largest_message_bytes=_largest(client, [f"{prefix}{queue}" for queue in options.queues]),
            claims_refused=_refused(client),
        )


def _asked(question: Callable[[], Answer], command: str, server: Endpoint) -> Answer | Unknown:
    """Return an answer; `Unknown`, with the missing right, if the user may not run the command."""
    try:
        return question()
    except redis.ResponseError as error:
        remedy = f"ACL SETUSER {server.user or 'default'} +{command.lower()} would allow it."
        return Unknown(f"{command} is refused: {error}", remedy)


def _clock_ahead_s(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6 - time())


def _config(client: redis.Redis, server: Endpoint) -> dict[str, str] | Unknown:
    found: dict[str, str] = {}
    try:
        with client.pipeline(transaction=False) as pipeline:
            for parameter in _PARAMETERS:
                pipeline.config_get(parameter)
            for answer in pipeline.execute():
                found |= answer
    except redis.ResponseError as error:
        who = server.user or "default"
        return Unknown(
            f"CONFIG GET is refused: {error}",
            f"ACL SETUSER {who} +config|get would allow it; a managed Redis shows its parameters elsewhere.",
        )
    return found


def _refused(client: redis.Redis) -> str:
    """Return the commands of claims that the server refuses, by those that change nothing."""
    commands = []
    for command in (("CLIENT", "TRACKING", "OFF"), ("EVALSHA", "0" * 40, 0), ("EVAL", "return 1", 0)):
        try:
            client.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.exceptions.NoScriptError:
            # a script that does not exist, which the user might run
            continue
        except redis.ResponseError as error:
            commands.append(f"{command_name(command)} ({error})")
        except redis.ConnectionError as error:
            if not was_closed(error):
                raise
            commands.append(f"{command_name(command)} (the connection is closed)")
    return ", ".join(commands)


def _exchanges(client: redis.Redis, prefix: str) -> frozenset[str] | Unknown:
    """Return the exchanges whose bindings kombu keeps in this database."""
    pattern = f"{prefix}{_BINDINGS}*"
    try:
        if client.dbsize() > _SEARCHED_KEYS:
            return Unknown(f"the database has more than {_SEARCHED_KEYS} keys and was not searched")
        names = [str(name) for name in islice(client.scan_iter(pattern, count=5000), _SEARCHED_KEYS)]
    except redis.ResponseError as error:
        return Unknown(f"SCAN is refused: {error}", "ACL SETUSER ... +scan +dbsize would allow it.")
    return frozenset(name.removeprefix(prefix + _BINDINGS) for name in names)


def _largest(client: redis.Redis, lists: Iterable[str]) -> int | Unknown:
    """Return the length of the largest waiting message, in bytes; 0 if none waits."""
    largest = 0
    unmeasured = 0
    try:
        for name in lists:
            measured: Any = client.eval_ro(_MEASURE, 1, name, str(_MEASURED_MESSAGES))  # type: ignore[no-untyped-call]
            largest = max(largest, int(measured))
            unmeasured += max(0, client.llen(name) - 2 * _MEASURED_MESSAGES)
    except redis.ResponseError as error:
        return Unknown(f"the messages cannot be measured: {error}", "EVAL_RO of Redis 7 would measure them.")
    if unmeasured and largest < LARGE_BYTES:
        return Unknown(f"{unmeasured} messages in the middle of long lists were not measured")
    return largest
