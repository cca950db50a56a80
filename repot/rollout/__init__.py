"""A rollout from one broker to another by canary: phases, judge, abort."""
