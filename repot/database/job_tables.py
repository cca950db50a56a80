"""The tables of jobs and of counts of deliveries. Instants are seconds since 1970, by the database's clock.

Tenants, scopes and idempotency keys are SHA-256 digests. Rows count as absent from their `deleted_at` on.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text

from repot.database.schema import MYSQL_OPTIONS, LongText, metadata

#: One row for each job; `repot.submission.job_rows.StoredJob` describes the columns.
jobs = Table(
    "repot_jobs",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("scope", String(64), nullable=False),
    Column("name", LongText, nullable=False),
    Column("task", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("payload", String(64), nullable=False),
    Column("key", String(64), nullable=False),
    Column("submitter", String(64), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("replacements", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("done", Text),
    Column("total", Text),
    Column("stage", Text),
    Column("error_type", Text, nullable=False),
    Column("error", LongText, nullable=False),
    Column("successor", String(255), nullable=False),
    Column("deleted_at", Double, nullable=False),
    Index("repot_jobs_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)

#: One row for each scope: the id of the job that holds it or held it last, if it has not ended, else "".
scopes = Table(
    "repot_job_scopes",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("scope", String(64), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("deleted_at", Double, nullable=False),
    Index("repot_job_scopes_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)

#: One row for each idempotency key: the id of its job.
keys = Table(
    "repot_job_keys",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("deleted_at", Double, nullable=False),
    Index("repot_job_keys_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)

#: One row for each tenant with refusals: how many entries its audit had, and the sums of all.
audits = Table(
    "repot_job_audits",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("entries", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("cost", Double, nullable=False),
    Column("deleted_at", Double, nullable=False),
    Index("repot_job_audits_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)

#: The last refusals of each tenant, by the number of the entry. `scope` is readable, as `name` of a job.
refusals = Table(
    "repot_job_refusals",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("refused_at", Double, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("scope", LongText, nullable=False),
    Column("job", String(255), nullable=False),
    Column("active", String(255), nullable=False),
    Column("status", String(20), nullable=False),
    **MYSQL_OPTIONS,
)

#: The sums of each scope; `scope` is the digest of its name, `entry` the number of its last refusal.
sums = Table(
    "repot_job_sums",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("scope", String(64), primary_key=True),
    Column("name", LongText, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("cost", Double, nullable=False),
    Column("entry", BigInteger, nullable=False),
    **MYSQL_OPTIONS,
)

#: One row for each message that was redelivered or returned; `name` is a digest of its id, retry and replay.
deliveries = Table(
    "repot_deliveries",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("deleted_at", Double, nullable=False),
    Index("repot_deliveries_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)
