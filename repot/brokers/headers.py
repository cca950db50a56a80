"""Message headers of repot's own that more than one part of it reads."""

from __future__ import annotations

#: When a person sent the message back, in milliseconds since 1970: of two replays the later one has the larger number,
#: also where they are of different messages. Celery carries it through retries, so tasks find it in `request.headers`.
REPLAY_HEADER = "repot_replay"
