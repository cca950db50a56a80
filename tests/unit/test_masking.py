"""Secrets in texts of others."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repot import masking
from repot.brokers.message import Message
from repot.deadletter.dead_letter import HEADER, Death, make_dead_letter
from repot.errors import RepotError, StoreUnreachable
from repot.masking import masked
from support.hostile import PLANTED, SHAPES


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", ["{}", "it failed: {}", "it failed ({}); trying again", "{}\nthe next line"])
def test_a_password_is_masked_in_every_shape(shape: str, text: str) -> None:
    shown = masked(text.format(shape))
    assert PLANTED not in str(shown)
    assert shown == masked(shown)


@given(st.sampled_from(SHAPES), st.text(max_size=30), st.text(max_size=30))
def test_a_password_is_masked_whatever_is_around_it(shape: str, before: str, after: str) -> None:
    assert PLANTED not in str(masked(f"{before} {shape}\n{after}"))


#: The names of the patterns for texts.
PATTERNS = sorted(
    name for name, one in vars(masking).items() if isinstance(one, re.Pattern) and one is not masking._SECRET_KEY
)


@pytest.mark.parametrize("name", PATTERNS)
@given(st.data())
def test_what_a_pattern_finds_has_a_sign(name: str, data: st.DataObject) -> None:
    """A text without signs is not searched."""
    pattern: re.Pattern[str] = getattr(masking, name)
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    assert masking._may_have_a_secret(text)


@pytest.mark.parametrize(
    "text",
    ["pa\u017fsword={}", "to\N{KELVIN SIGN}en={}", "PASSWORD={}", "aMqP://shop:{}@broker"],
)
def test_a_name_is_found_in_any_case(text: str) -> None:
    assert PLANTED not in str(masked(text.format(PLANTED)))


@pytest.mark.parametrize(
    "text",
    [
        "fencing_token=3, the fencing token: 4",
        "the token is wrong; `repot rollout serve` printed it, or it is in its --token-file",
        "HEALTHCHECK_TOKEN: Field required",
        "password authentication failed for user 'shop'",
        "3 passed, bypass=1, passes: 4",
        "Basic authentication of the bearer",
        "tokens: 5 of 6 words",
        "token == other",
        '{"queue": "celery", "key": "a=b"}',
    ],
)
def test_a_text_without_a_secret_stays(text: str) -> None:
    assert text == masked(text)


def test_what_surrounds_a_secret_stays() -> None:
    assert masked(f"db (password={PLANTED}); user=shop") == "db (password=**); user=shop"
    assert masked(f'{{"password": "{PLANTED}", "x": 1}}') == '{"password": "**", "x": 1}'
    assert masked(f"Authorization: Bearer {PLANTED}, X: 1") == "Authorization: Bearer **, X: 1"


@pytest.mark.parametrize("size", [20_000])
@pytest.mark.parametrize("piece", ["a", "password", "password=", "'", '\\"', "://", "token: ", "Bearer "])
def test_a_long_text_takes_no_longer_than_its_length(piece: str, size: int) -> None:
    """A pattern that looked again from each character would take minutes."""
    masked(piece * (size // len(piece)))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_of_repot_holds_no_secret(shape: str) -> None:
    """Whatever prints it, also an application."""
    for error in (RepotError(shape, hint=shape), StoreUnreachable(f"no answer: {shape}")):
        assert PLANTED not in f"{error} {error!r} {error.message} {error.hint} {error.args}"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_header_of_a_dead_letter_holds_no_secret(shape: str) -> None:
    """Other programs read the queue; the message itself stays as it was."""
    message = Message(shape.encode(), "text/plain", "utf-8", {"id": "1", "task": "shop.pay"})
    found = make_dead_letter(message, Death("failed", "celery", message=shape, traceback=f"Traceback\n  {shape}\n"))
    assert PLANTED not in found.headers[HEADER]
    assert "Traceback" in json.loads(found.headers[HEADER])["traceback"]
    assert message.body == found.body


@pytest.mark.parametrize(
    "text",
    [
        "redis://127.0.0.1:21580/0 did not answer: NOPERM, on @user_script:67.",
        "the store redis://h refuses access, see ann@example.org",
        "'amqp://[::1]:5672//', and celery@host",
        "redis://h:6379: celery@host has left",
    ],
)
def test_an_address_without_credentials_ends_at_a_blank(text: str) -> None:
    assert text == masked(text)
    # and so do those with credentials, which are masked in the end
    once = str(masked(text.replace("://", "://ann:planted@", 1)))
    assert text.replace("://", "://ann:**@", 1) == once
    assert once == masked(once)
