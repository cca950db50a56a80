"""Move what waits on one broker to another: plan, move, account, verify."""
