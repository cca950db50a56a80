"""Accepting a job once: the scope it occupies, its record, and the answer to the second click."""

from repot.submission.job import Accepted, Audit, Cancelled, Job, Progress, Refusal, Saved, Status
from repot.submission.jobs import Jobs
from repot.submission.task import JobTask

__all__ = [
    "Accepted",
    "Audit",
    "Cancelled",
    "Job",
    "JobTask",
    "Jobs",
    "Progress",
    "Refusal",
    "Saved",
    "Status",
]
