"""Addresses: accepted or refused with a reason, and never shown with a password."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection

from repot.brokers import open_broker
from repot.config.endpoints import endpoints
from repot.config.urls import AMQP_SCHEMES, BROKER_SCHEMES, REDIS_SCHEMES, SERVERLESS_SCHEMES, BrokerUrl, ServiceUrl
from repot.errors import BrokerUnreachable
from repot.masking import masked

PLANTED = "hunter2-s3cret"

hosts = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5})?", fullmatch=True)
ports = st.integers(1, 65535)
passwords = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)


#: A socket file has no host, and what has no server no password.
NETWORK_SCHEMES = [scheme for scheme in REDIS_SCHEMES + AMQP_SCHEMES if scheme != "redis+socket"]


@given(scheme=st.sampled_from(NETWORK_SCHEMES), host=hosts, port=ports, password=passwords)
def test_any_quoted_password_is_accepted_and_masked(scheme: str, host: str, port: int, password: str) -> None:
    secret = f"{PLANTED}{password}"
    text = f"{scheme}://user:{quote(secret, safe='')}@{host}:{port}/0"
    url = BrokerUrl.parse(text)
    assert text == url.reveal()
    for shown in (str(url), repr(url), url.masked(), f"{url}", repr([url])):
        assert PLANTED not in shown
    assert f"{scheme}://user:**@{host}:{port}/0" == url.masked()


@given(
    scheme=st.sampled_from(BROKER_SCHEMES),
    before=st.text("abcXYZ019", max_size=5),
    bad=st.sampled_from(["/", "#", "?", "@", ";", "%"]),
    after=st.text("ghGH!", max_size=5),
)
def test_a_password_that_needs_quoting_is_refused_without_showing_it(
    scheme: str, before: str, bad: str, after: str
) -> None:
    with pytest.raises(ValueError, match="percent-encode") as caught:
        BrokerUrl.parse(f"{scheme}://user:{PLANTED}{before}{bad}{after}{PLANTED}@host:6379/0")
    assert PLANTED not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_escapes_the_parser_with_another_error(text: str) -> None:
    """Whatever is typed, there is an address or a ValueError that does not repeat a password."""
    shown = ""
    try:
        url = BrokerUrl.parse(f"amqp://user:{PLANTED}{text}@host")
        shown = f"{url} {url!r} {masked(url.reveal())}"
    except ValueError as error:
        shown = str(error)
    assert PLANTED not in shown


@given(st.text(max_size=60))
def test_masking_hides_credentials_in_any_text(text: str) -> None:
    shown = masked(f"{text} amqp://user:{PLANTED}@host:5672/v and redis://:{PLANTED}x@h")
    assert PLANTED not in str(shown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("localhost:6379", "has no scheme"),
        ("http://host", "has the scheme 'http'; a broker is one of redis, rediss, sentinel, redis.socket, amqp"),
        ("sentinel://", "names no host"),
        ("redis+socket://", "names no file"),
        ("redis+socket://run/redis.sock", "starts with a third slash"),
        ("redis+socket:///a;redis+socket:///b", "lists several sockets"),
        ("redis+socket:///a?virtual_host=x", "Redis databases are numbers"),
        ("redis+socket:///a?db=1", "remove it"),
        ("memory://;amqp://", "mixes the transports amqp, memory"),
        ("amqp://host:99999", "port is a number from 1 to 65535"),
        ("redis://host:port/0", "port is a number from 1 to 65535"),
        ("redis://host/zero", "Redis databases are numbers"),
        ("amqp://host?heartbeat=10", "set WORKER_HEARTBEAT instead"),
        ("redis://host/0?socket_timeout=5", "set WORKER_SOCKET_TIMEOUT instead"),
        ("redis://host/0?virtual_host=1", "remove it"),
        ("redis://host/0?ssl_cert_reqs=none", "remove it"),
        ("redis://one;amqp://two", "mixes the transports amqp, redis"),
        ("Redis://host", "write it in lower case"),
        ("redis:// host/0", "holds a space"),
        ("rediss://host/0?ssl_cert_reqs=bogus", "ssl_cert_reqs other than"),
        ("amqp://one;two", "server 2 of the list is not an address"),
    ],
)
def test_an_invalid_url_is_an_error_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        BrokerUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("amqp://", "amqp://localhost"),
        ("pyamqp://", "pyamqp://localhost"),
        ("amqp:///shop", "amqp://localhost/shop"),
        ("amqp://u:p@/shop", "amqp://u:p@localhost/shop"),
        ("redis://", "redis://localhost"),
        ("redis:///3", "redis://localhost/3"),
        ("redis://:p@:6380/3", "redis://:p@localhost:6380/3"),
        ("redis://;redis://b", "redis://localhost;redis://b"),
        ("rediss://?ssl_cert_reqs=none", "rediss://localhost?ssl_cert_reqs=none"),
        ("valkey://h/1", "redis://h/1"),
        ("valkeys://u:p@h", "rediss://u:p@h"),
        ("valkey://", "redis://localhost"),
        ("valkey+socket:///a", "redis+socket:///a"),
        ("redis+socket://u:p@/run/redis.sock?virtual_host=2", "redis+socket://u:p@/run/redis.sock?virtual_host=2"),
        ("memory://", "memory://"),
        ("filesystem://localhost//", "filesystem://localhost//"),
    ],
)
def test_an_address_is_read_as_celery_reads_it(text: str, read: str) -> None:
    url = BrokerUrl.parse(text)
    assert read == url.reveal()
    assert read == BrokerUrl.parse(read).reveal()
    # stock kombu takes what is handed on
    if url.scheme != "filesystem":
        Connection(read).clone()


def test_a_socket_file_is_taken_apart_as_kombu_does() -> None:
    (server,) = endpoints(f"redis+socket://u:{PLANTED}@/run/my%20redis.sock?virtual_host=2")
    assert (server.host, server.user, server.password, server.path) == ("/run/my redis.sock", "u", PLANTED, "2")
    assert server.is_local
    assert PLANTED not in f"{server} {server!r}"


def test_a_failover_list_keeps_its_order() -> None:
    url = BrokerUrl.parse("amqp://one:5672//; amqp://two:5672//;")
    assert url.servers == ("amqp://one:5672//", "amqp://two:5672//")
    assert url.reveal() == "amqp://one:5672//;amqp://two:5672//"


@pytest.mark.parametrize(
    "text",
    [
        f"amqp://user:{PLANTED} {PLANTED}@host//",
        f"amqp://user:{PLANTED};{PLANTED}@host//",
        f"redis://host/1?password={PLANTED}",
        f"azureblockblob://DefaultEndpointsProtocol=https;AccountName=x;AccountKey={PLANTED};EndpointSuffix=y",
        f"amqp://one:{PLANTED}@a;amqp://two:{PLANTED}@b",
    ],
)
def test_whatever_an_application_configured_is_masked(text: str) -> None:
    assert PLANTED not in str(masked(text))


def test_a_word_alone_before_the_host_is_masked() -> None:
    """`redis://secret@host` gives a user name, but was meant as a password."""
    assert BrokerUrl.parse(f"redis://{PLANTED}@host/0").masked() == "redis://**@host/0"


def test_a_secret_option_of_a_result_address_is_masked() -> None:
    shown = ServiceUrl.parse(f"db+postgresql://host/results?sslpassword={PLANTED}&x=1").masked()
    assert shown == "db+postgresql://host/results?sslpassword=**&x=1"


def test_a_list_begins_with_the_server_in_use() -> None:
    url = BrokerUrl.parse("amqp://u:p@a//;amqp://u:p@B:5673//")
    assert url.addresses == (("a", 5672), ("b", 5673))
    assert url.beginning_with("b:5673").reveal() == "amqp://u:p@B:5673//;amqp://u:p@a//"
    assert url.reveal() == url.beginning_with("a:5672").reveal()
    assert url.reveal() == url.beginning_with("elsewhere:1").reveal()


@pytest.mark.parametrize("scheme", SERVERLESS_SCHEMES)
def test_what_has_no_server_cannot_be_asked(scheme: str) -> None:
    with pytest.raises(BrokerUnreachable, match="has no server that repot can ask"):
        open_broker(BrokerUrl.parse(f"{scheme}://"))


@pytest.mark.parametrize(
    ("first", "second", "serves_both"),
    [
        ("amqp://me@one/a", "amqp://other@one/b", True),
        ("amqp://one:5673//", "amqp://one//", False),
        ("amqp://one//;amqp://two//", "amqp://two/b", True),
        ("redis://one/0", "amqp://two//", True),
        ("amqp://one//", "amqp://two//", False),
    ],
)
def test_one_management_address_serves_one_rabbitmq(first: str, second: str, *, serves_both: bool) -> None:
    urls = BrokerUrl.parse(first), BrokerUrl.parse(second)
    assert urls[0].shares_management(urls[1]) is serves_both
    assert urls[1].shares_management(urls[0]) is serves_both
