"""Starting files for a deployment: `.env`, compose, supervisord and systemd, with credentials of its own."""

from repot.init.dotenv import BROKERS
from repot.init.project import Written, initialize, is_ignored_by_git

__all__ = ["BROKERS", "Written", "initialize", "is_ignored_by_git"]
