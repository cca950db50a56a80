"""Accept a job once per scope: the scope, the job's record, and the answer to a second submission."""

from repot.submission.job import Accepted, Audit, Cancelled, Job, JobProgress, Refusal, Savings, Status
from repot.submission.job_task import JobTask
from repot.submission.jobs import Jobs

__all__ = [
    "Accepted",
    "Audit",
    "Cancelled",
    "Job",
    "JobProgress",
    "JobTask",
    "Jobs",
    "Refusal",
    "Savings",
    "Status",
]
