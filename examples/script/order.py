"""Order: `python order.py FIRST LAST [PAUSE]`. Ctrl-C ends it before the last order."""

import signal
import sys
from threading import Event

from shop import charge

first, last = int(sys.argv[1]), int(sys.argv[2])
pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0
number = first
# not by KeyboardInterrupt: Python drops one that comes while it deletes a result
stopped = Event()
signal.signal(signal.SIGINT, lambda *_: stopped.set())
with open("ordered.txt", "a", buffering=1) as ordered:
    for number in range(first, last + 1):
        charge.delay(f"order-{number}")
        print(f"order-{number}", file=ordered)
        if stopped.wait(pause_s):
            break
print(f"ordered: order-{first} to order-{number}")
