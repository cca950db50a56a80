"""Write starting files for a deployment: `.env` with new credentials, compose, supervisord and systemd."""

from repot.init.dotenv import BROKERS
from repot.init.project import PREVIOUS, Written, initialize, is_addition, is_ignored_by_git

__all__ = ["BROKERS", "PREVIOUS", "Written", "initialize", "is_addition", "is_ignored_by_git"]
