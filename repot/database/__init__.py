"""A lease store in the user's own database: the tables, their migrations, and one connection with clear errors.

PostgreSQL, MySQL, MariaDB and SQLite, by SQLAlchemy. The extra `repot[database]` installs what it needs; no module here
is imported without it.
"""

from __future__ import annotations
