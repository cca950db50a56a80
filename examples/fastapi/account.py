"""Compare what was charged with what was ordered."""

import sys
import time
from collections import Counter

with open("ordered.txt") as file:
    ordered = file.read().split()
for _ in range(300):  # the last tasks may still run
    with open("ledger.txt") as file:
        charged = Counter(line.split()[1] for line in file if line.startswith("charged"))
    missing = set(ordered) - charged.keys()
    if not missing:
        break
    time.sleep(0.1)
doubled = [order for order in ordered if charged[order] > 1]
print(f"ordered {len(ordered)}, not charged {len(missing)}, charged twice {len(doubled)}:", *doubled)
sys.exit(1 if missing else 0)
