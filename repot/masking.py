"""Mask secrets in output."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Keys whose values are secrets; Celery's own report has a similar list. A fencing token is a number that grows.
_SECRET_KEY = re.compile(
    r"pass|secret|(?<!fencing_)token|signature|credential|api_?key|private|authorization", re.IGNORECASE
)
#: Credentials in a text that is one URL: all before its last @.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.*@[^\s@]*[^\s@.]", re.DOTALL | re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)(?:(?!://).)*@", re.DOTALL)
#: In other texts a URL ends at a blank; without an @ before that, its password has blanks or its host ends there.
_HOST = r"""(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?(?:[/?#][^\s@]*)?[:,;.)\]'"]*(?=\s|$)"""
_CREDENTIALS_IN_TEXT = re.compile(rf"(?<=://)(?:(?:(?!://)\S)*@|(?!{_HOST})(?:(?!://)[^@])*@(?:\S*@)?)")
_SECRET_OPTION = re.compile(
    r"([?&;][^=&;\s]*(?:pass|secret|(?<!fencing_)token|key|signature)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE
)
#: What precedes a secret in a text is its name, as in `password=`, `access_token: ` and `"password": `. The text may be
#: JSON within JSON, whose quotes are escaped.
_NAME = (
    r"(?:passw(?:or)?d|passphrase|pwd|(?<![a-z])pass(?![a-z])|secret|(?<!fencing[_ -])token|credentials?"
    r"|(?:api|access|account|private)[_-]?key)s?(?:[_-]\w{1,40})?\d*"
)
_QUOTED = r"""[bu]?(?:(?P<quote>["'])(?:\\.|(?!(?P=quote)).)*(?P=quote)?|(?P<escaped>\\+["'])(?:(?!(?P=escaped)).)*)"""
#: To the next blank or separator; punctuation at its end is the text's.
_BARE = r"""(?:(?![,.)\]}>"']+(?:[\s;&]|$))[^\s&;])+"""
_ASSIGNED = re.compile(rf"(?P<name>{_NAME}\s*=>?(?!=)\s*)(?:{_QUOTED}|{_BARE})", re.IGNORECASE)
_MEMBER = re.compile(rf"""(?P<name>{_NAME}\\*["']\s*(?:=>|:)\s*)(?:{_QUOTED}|[^\s,;}}\])]+)""", re.IGNORECASE)
#: As a line of YAML or of headers. A word with more words after it is a sentence: "the token: read it from a file".
_LINE = re.compile(
    rf"(?P<name>{_NAME}:\s*)(?:{_QUOTED}|{_BARE}(?=[,.)\]}}>\"']*(?:$|\n|[,;&)]\s))|(?=\S*[a-z])(?=\S*\d){_BARE})",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    r"""(?P<name>authorization\\*["']?\s*(?:[:=,]|=>)\s*[bu]?\\*["']?(?:[a-z]+\s+)?)[^\s"',\\]+""", re.IGNORECASE
)
#: Beyond a header `Authorization` too; shorter words, or those without a digit or capital, are English.
_SCHEME = re.compile(r"\b(?P<name>(?:[Bb]earer|Basic)\s+)(?=[^\s\"',]*[A-Z0-9])[A-Za-z0-9+/_.~=-]{8,}")

MASK = "**"

#: Each pattern needs one of these, in any case: a text without them, as almost each line of a log is, has no secret.
_SIGNS = (
    "://",
    "authorization",
    "basic",
    "bearer",
    "credential",
    "key",
    "pass",
    "pwd",
    "secret",
    "signature",
    "token",
)


def masked(value: object, key: str = "") -> object:
    """Return a value with secrets masked: values under secret keys, and passwords in URLs and after their names.

    Doing it again changes nothing.
    """
    if key and _SECRET_KEY.search(key) and value:
        return MASK
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, Mapping):
        return {name: masked(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(inner) for inner in value]
    return value


def _masked_text(text: str) -> str:
    return _searched(text) if _may_have_a_secret(text) else text


def _may_have_a_secret(text: str) -> bool:
    # a pattern that ignores case also takes characters beyond ASCII for these, as the long s
    if not text.isascii():
        return True
    lowered = text.lower()
    return any(sign in lowered for sign in _SIGNS)


def _searched(text: str) -> str:
    credentials = _CREDENTIALS if _ADDRESS.fullmatch(text) else _CREDENTIALS_IN_TEXT
    text = _SECRET_OPTION.sub(rf"\1{MASK}", credentials.sub(_without_password, text))
    for pattern in (_AUTHORIZATION, _SCHEME, _MEMBER, _ASSIGNED, _LINE):
        text = pattern.sub(_without_value, text)
    return text


def _without_password(match: re.Match[str]) -> str:
    user, colon, _ = match[0].partition(":")
    return f"{user}:{MASK}@" if colon and "@" not in user else f"{MASK}@"


def _without_value(match: re.Match[str]) -> str:
    groups = match.groupdict()
    quote = groups.get("quote") or groups.get("escaped") or ""
    # a text that was cut ends within its quotes
    closing = quote if groups.get("quote") and match[0].endswith(quote) else ""
    return f"{match['name']}{quote}{MASK}{closing}"
