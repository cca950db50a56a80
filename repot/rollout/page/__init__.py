"""The page of a rollout: live over server-sent events, or as one file for a finished one."""
