"""Order: `python order.py FIRST LAST [PAUSE]`. Ctrl-C ends it before the last order."""

import sys
import time

from shop import charge

first, last = int(sys.argv[1]), int(sys.argv[2])
pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0
number = first
with open("ordered.txt", "a", buffering=1) as ordered:
    try:
        for number in range(first, last + 1):
            charge.delay(f"order-{number}")
            print(f"order-{number}", file=ordered)
            time.sleep(pause_s)
    except KeyboardInterrupt:
        pass
print(f"ordered: order-{first} to order-{number}")
