"""Message headers that repot adds and several packages read."""

from __future__ import annotations

#: When the message was replayed, in milliseconds since 1970: the later of two replays has the larger number, also for
#: different messages. Celery carries it through retries, so tasks find it in `request.headers`.
REPLAY_HEADER = "repot_replay"
