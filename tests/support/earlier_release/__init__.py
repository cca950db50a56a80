"""The release before `repot.store`: its rules on Redis were scripts, which are here as it had them.

They run beside today's rules on the same records, as during a deploy.
"""

from __future__ import annotations

from pathlib import Path

#: The text of each script, by its name.
SCRIPTS = {path.stem: path.read_text() for path in Path(__file__).parent.glob("*.lua")}
