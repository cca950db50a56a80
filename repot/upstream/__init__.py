"""Every place where repot relies on a part of its libraries that they do not promise to keep.

The libraries are Celery, kombu, py-amqp, redis-py, billiard, psycopg and Python's own. Each module covers one part: it
patches, subclasses or reads it, and offers a function or a base class to the rest of repot, which touches no private
part itself (`tests/upstream/test_rooms.py`). A module's `POINTS` name what it relies on; `repot.upstream.points`
compares them with the installed versions, and `docs/upstream.md` lists them with the bugs that make them necessary.

The modules import nothing of repot but each other, and each imports its library alone.
"""
