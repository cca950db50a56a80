"""What a task does outside, and whether its own retry repeats it where no answer arrives (RPT129)."""

from __future__ import annotations

import sys
import textwrap
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from support.judging import NEWEST, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.doctor.facts import Facts

pytestmark = NEWEST

IMPORTS = """
import contextlib
import smtplib
import urllib.request
from smtplib import SMTPException
from urllib.error import URLError

import httpx
import requests
import stripe
from django.core import mail
from django.core.mail import EmailMessage, send_mail
from django.db import transaction
from repot.idempotency import IdempotentTask
from requests import post
from requests.exceptions import ConnectTimeout, Timeout

session = requests.Session()
URL = "https://pay.example.com/charges"

class OfOurOwn(Exception): ...
"""

EVERY = "autoretry_for=(Exception,)"


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for clients that are not installed: the doctor reads names, and the module has to be imported."""
    for name, kinds in {
        "httpx": ("HTTPError", "ConnectError", "Client"),
        "stripe": ("StripeError", "CardError", "Charge"),
    }.items():
        module = ModuleType(name)
        for kind in kinds:
            setattr(module, kind, type(kind, (Exception,), {"__module__": name}))
        monkeypatch.setitem(sys.modules, name, module)


def found_in(project: Callable[[str], Facts], options: str, body: str) -> list[str]:
    """The findings about a task with these options and this body, bound as `self`."""
    text = f"{IMPORTS}\n\n@app.task(bind=True, shared=False, name='shop.bill', {options})\ndef bill(self, order):\n"
    found = judge(project(text + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"), "RPT129")
    assert found.not_judged == ()
    return [f"{one.finding.task}: {one.finding.message}" for one in found.findings]


@pytest.mark.parametrize(
    ("options", "body", "name"),
    [
        # automatically, by what the client raises where no answer arrives, or by a class above it
        (EVERY, "requests.post(URL, json=order, timeout=5)", "requests.post()"),
        ("autoretry_for=[OSError]", "requests.post(URL)", "requests.post()"),
        ("autoretry_for=(OfOurOwn, Timeout)", "post(URL)", "post()"),
        ("autoretry_for=(requests.RequestException,), retry_backoff=True", "session.post(URL)", "session.post()"),
        (EVERY, "requests.request('post', URL)", "requests.request()"),
        (EVERY, "requests.Session().post(URL)", "requests.Session().post()"),
        (EVERY, "with requests.Session() as one:\n    one.post(URL)", "one.post()"),
        (EVERY, "import requests as r\nr.post(URL)", "r.post()"),
        ("autoretry_for=(httpx.HTTPError,)", "httpx.post(URL)", "httpx.post()"),
        (EVERY, "with httpx.Client() as client:\n    client.post(URL)", "client.post()"),
        ("autoretry_for=(URLError,)", "urllib.request.urlopen(URL, data=order)", "urllib.request.urlopen()"),
        (EVERY, "urllib.request.urlopen(urllib.request.Request(URL, b''))", "urllib.request.urlopen()"),
        (EVERY, "urllib.request.urlopen(urllib.request.Request(URL, method='POST'))", "urllib.request.urlopen()"),
        ("autoretry_for=(SMTPException,)", "send_mail('a', 'b', 'c', ['d'])", "send_mail()"),
        (EVERY, "mail.send_mail('a', 'b', 'c', ['d'], fail_silently=False)", "mail.send_mail()"),
        (EVERY, "EmailMessage('a').send()", "EmailMessage('a').send()"),
        (EVERY, "mail_ = EmailMessage('a')\nmail_.send()", "mail_.send()"),
        (EVERY, "with smtplib.SMTP('host') as smtp:\n    smtp.send_message(order)", "smtp.send_message()"),
        ("autoretry_for=(stripe.StripeError,)", "stripe.Charge.create(amount=1)", "stripe.Charge.create()"),
        (EVERY, "for one in order:\n    if one:\n        requests.post(URL)", "requests.post()"),
        (EVERY, "try:\n    post(URL)\nexcept Timeout:\n    print('late')\n    raise", "post()"),
        (EVERY, "try:\n    post(URL)\nexcept OfOurOwn:\n    pass", "post()"),
        (EVERY, "try:\n    print()\nexcept Timeout:\n    pass\nelse:\n    post(URL)", "post()"),
        # by itself
        ("", "try:\n    post(URL)\nexcept Timeout as error:\n    raise self.retry(exc=error)", "post()"),
        ("", "try:\n    post(URL)\nexcept (KeyError, OSError):\n    self.retry(countdown=5)", "post()"),
        ("", "try:\n    send_mail('a', 'b', 'c', ['d'])\nexcept:\n    self.retry()", "send_mail()"),
        (
            "",
            """
            try:
                post(URL)
            except Exception as error:
                if self.request.retries < 3:
                    raise self.retry(exc=error)
                print("given up")
            """,
            "post()",
        ),
    ],
)
def test_a_retry_repeats_what_got_no_answer(
    project: Callable[[str], Facts], options: str, body: str, name: str
) -> None:
    found = found_in(project, options, body)
    assert len(found) == 1
    assert found[0].startswith("shop.bill: ")
    assert found[0].endswith(f" repeats {name} when no answer arrives")


@pytest.mark.parametrize(
    ("options", "body"),
    [
        # nothing is retried
        ("", "post(URL)"),
        ("autoretry_for=()", "post(URL)"),
        ("retry_backoff=True", "post(URL)"),
        ("autoretry_for=(Exception,), max_retries=0", "post(URL)"),
        ("max_retries=0", "try:\n    post(URL)\nexcept Timeout as error:\n    raise self.retry(exc=error)"),
        # or not what leaves it open whether it happened
        ("autoretry_for=(ConnectTimeout,)", "post(URL)"),
        ("autoretry_for=(KeyError, OfOurOwn)", "post(URL)"),
        ("autoretry_for=(ConnectionError,)", "requests.post(URL)"),
        ("autoretry_for=(OSError,)", "httpx.post(URL)"),
        ("autoretry_for=(httpx.ConnectError,)", "httpx.post(URL)"),
        ("autoretry_for=(stripe.CardError,)", "stripe.Charge.create(amount=1)"),
        ("autoretry_for=(requests.HTTPError,)", "post(URL).raise_for_status()"),
        ("autoretry_for=(Exception,), dont_autoretry_for=(requests.RequestException,)", "post(URL)"),
        # it only reads
        (EVERY, "requests.get(URL)"),
        (EVERY, "requests.request('GET', URL)"),
        (EVERY, "requests.request(order, URL)"),
        (EVERY, "urllib.request.urlopen(URL)"),
        (EVERY, "urllib.request.urlopen(urllib.request.Request(URL, b'', method='PUT'))"),
        (EVERY, "stripe.Charge.retrieve('ch_1')"),
        # what a second time does not change
        (EVERY, "requests.put(URL)\nrequests.delete(URL)"),
        # the other side knows the repetition
        (EVERY, "post(URL, headers={'Idempotency-Key': order})"),
        (EVERY, "headers = {'X-Idempotency-Key': order}\npost(URL, headers=headers)"),
        (EVERY, "stripe.Charge.create(amount=1, idempotency_key=order)"),
        (EVERY, "post(URL, headers=order.headers())"),
        (EVERY, "if not order.deduplicated():\n    post(URL)"),
        ("autoretry_for=(Exception,), base=IdempotentTask", "post(URL)"),
        # what it raises goes nowhere
        (EVERY, "send_mail('a', 'b', 'c', ['d'], fail_silently=True)"),
        (EVERY, "try:\n    post(URL)\nexcept Timeout:\n    return"),
        (EVERY, "with contextlib.suppress(Exception):\n    post(URL)"),
        # what is retried is something else
        ("", "try:\n    print()\nexcept Timeout as error:\n    raise self.retry(exc=error)\npost(URL)"),
        ("", "try:\n    print()\nexcept Timeout as error:\n    post(URL)\n    raise self.retry(exc=error)"),
        ("", "try:\n    post(URL)\nexcept KeyError as error:\n    raise self.retry(exc=error)"),
        ("", "try:\n    post(URL)\nexcept ConnectTimeout as error:\n    raise self.retry(exc=error)"),
        ("", "try:\n    post(URL)\nexcept Timeout as error:\n    if order.sent():\n        self.retry(exc=error)"),
        ("", "try:\n    post(URL)\nexcept Timeout as error:\n    order.retry(exc=error)"),
        # it runs later, elsewhere, or is another object's
        (EVERY, "transaction.on_commit(lambda: send_mail('a', 'b', 'c', ['d']))"),
        (EVERY, "def later():\n    post(URL)\ntransaction.on_commit(later)"),
        (EVERY, "order.post(URL)"),
        (EVERY, "requests = order\nrequests.post(URL)"),
        (EVERY, "one = requests.Session()\none = order\none.post(URL)"),
        (EVERY, "one = order\nif order:\n    one = requests.Session()\none.post(URL)"),
        (EVERY, "for post in order:\n    post(URL)"),
    ],
)
def test_what_no_retry_repeats(project: Callable[[str], Facts], options: str, body: str) -> None:
    assert found_in(project, options, body) == []


def test_an_effect_belongs_to_its_own_task(project: Callable[[str], Facts]) -> None:
    """Another task of the module is not retried, and one that is has no effect."""
    text = f"""{IMPORTS}
@app.task(shared=False)
def once(): post(URL)

@app.task(shared=False, {EVERY})
def reads(): requests.get(URL)

def helper(): post(URL)
"""
    assert judge(project(text), "RPT129").findings == ()
