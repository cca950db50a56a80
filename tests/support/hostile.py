"""Text as others send it: passwords in every shape, and characters that control a terminal."""

from __future__ import annotations

PLANTED = "hunter2-s3cret"

#: How a password gets into the text of an exception.
SHAPES = (
    f"amqp://shop:{PLANTED}@rabbitmq:5672//",
    f"redis://:{PLANTED}@redis:6379/0",
    f"postgresql+psycopg://shop:{PLANTED}@db/shop",
    f"host=db user=shop password={PLANTED} dbname=shop",
    f"host=db password='{PLANTED}' user=shop",
    f"Server=db;PWD={PLANTED};Database=shop",
    f"https://api.example/?token={PLANTED}&x=1",
    f"token={PLANTED}",
    f"Authorization: Bearer {PLANTED}",
    f"Authorization: Basic {PLANTED}",
    f"{{'authorization': 'Bearer {PLANTED}'}}",
    f"[(b'authorization', b'Bearer {PLANTED}')]",
    f'{{"user": "shop", "password": "{PLANTED}"}}',
    f'{{"user": "shop","api_key":"{PLANTED}","x":1}}',
    f'"{{\\"password\\": \\"{PLANTED}\\"}}"',
    f"{{'secret': '{PLANTED}'}}",
    f"OperationalError(\"password='{PLANTED}'\")",
    f"connect(host='db', password='{PLANTED}', port=1)",
    f"ValueError('access_token={PLANTED}')",
    f"password: {PLANTED}",
    f"password: {PLANTED} and more",
    f"X-Api-Key: {PLANTED}",
    f'SECRET_KEY = "{PLANTED}"',
    # cut at its end
    f"'password': '{PLANTED}",
)

#: A terminal's title, its bell, colours of C1, and text that is read from right to left.
CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eexe.txt\u202a\u2066\u2069"


def is_safe(shown: str) -> bool:
    """Whether no password and no character of CONTROLS is in a text; line breaks and tabs may be."""
    return PLANTED not in shown and not set(CONTROLS) - set("]0;owned[2J31mexe.txt") & set(shown)
