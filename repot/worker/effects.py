"""Signal the effect of a synthetic task, for an experiment's recorder.

A Celery signal, sent in the process that runs the task; `sender` is the task's name.
"""

from __future__ import annotations

from repot.upstream.signal import Signal

effect_event = Signal(name="repot_effect_event", providing_args=["task_id", "worker"])
