# The worker with its health sidecar under supervisord, and, as other targets, the same with drivers of databases (for
# WORKER_LEASE_STORE=postgresql+psycopg://, docs/database.md), and Flower:
#
#   docker build -t worker .
#   docker build -t worker-database --target database .
#   docker build -t flower --target flower .
#
# Put your application on top, in the worker's import path:
#
#   FROM worker
#   COPY --chown=0:0 shop /app/shop
#   ENV WORKER_APP=shop.celery:app
#
# The image contains no settings and no passwords: they come from the environment.

FROM python:3.13-slim AS build
WORKDIR /build
# a virtual environment without pip: production installs nothing
RUN python3 -m venv --without-pip /opt/worker \
 && python3 -m venv --without-pip /opt/database \
 && python3 -m venv --without-pip /opt/flower
# Dependencies first: a change of the code then installs no dependencies again. With hashes, so no one can replace a
# package on the way; wheels only, so nothing needs a compiler or runs code at installation
COPY requirements.txt requirements-database.txt requirements-flower.txt requirements-build.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r requirements-build.txt \
 && pip --python /opt/worker/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes --no-deps --only-binary :all: -r requirements.txt \
 && pip --python /opt/database/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes --no-deps --only-binary :all: -r requirements-database.txt \
 && pip --python /opt/flower/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes --no-deps --only-binary :all: -r requirements-flower.txt
COPY pyproject.toml README.md LICENSE ./
COPY repot repot
# experiments and private servers, with the lines of pyproject.toml that are entry points into them: `repot chaos`, `demo`
# and `up` are then refused. --build-arg OMIT= keeps them
ARG OMIT="repot.chaos repot.testbed"
RUN for package in $OMIT; do rm -r "$(echo "$package" | tr . /)" && sed -i "/\"$package\./d" pyproject.toml || exit; done
# the version comes from a tag, and the repository is not here: --build-arg VERSION=0.1.0
ARG VERSION=0.0.0
# with byte code: each probe is a new process, and would compile Celery again. Without the tests of packages
RUN SETUPTOOLS_SCM_PRETEND_VERSION_FOR_REPOT=$VERSION pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheel . \
 && for environment in worker database flower; do \
      pip --python /opt/$environment/bin/python install --no-cache-dir --disable-pip-version-check \
        --no-deps --no-index /build/wheel/*.whl; \
      find /opt/$environment/lib -depth -type d '(' -name tests -o -name test ')' -path '*/site-packages/*' \
        -exec rm -r {} +; \
    done

FROM python:3.13-slim AS base
# a user of its own, with a fixed number for volumes and Kubernetes
RUN groupadd --gid 10001 worker \
 && useradd --uid 10001 --gid worker --no-create-home --home-dir /tmp --shell /usr/sbin/nologin worker
# no buffer for logs; no byte code on a read-only root file system
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# where `celery -A` looks for the application
WORKDIR /app

FROM base AS flower
COPY --from=build /opt/flower /opt/flower
ENV PATH=/opt/flower/bin:$PATH WORKER_APP=repot.worker.app
USER worker
EXPOSE 5555
# it can end tasks and stop workers: without a name and a password it does not start
CMD ["sh", "-c", ": \"${FLOWER_BASIC_AUTH:?is missing: name:password}\"; exec celery -A \"$WORKER_APP\" flower"]

FROM base AS supervised
COPY repot/init/files/supervisord.conf ./
# supervisord's own two files: the root file system may be read-only, /tmp never is
RUN sed -i 's,%(here)s/supervisord\.,/tmp/supervisord.,' supervisord.conf
# the variables that supervisord.conf needs and `repot init` writes to .env; and the worker to probe beside a bridge
ENV PATH=/opt/worker/bin:$PATH \
    WORKER_APP=repot.worker.app \
    WORKER_VISIBILITY_TIMEOUT=7200 \
    CELERY_QUEUE_NAMES=celery \
    CELERY_WORKER_AUTOSCALE=2,2 \
    HEALTHCHECK_NODE=worker@%h \
    START_HEALTHCHECK=true \
    START_FLOWER=false \
    START_BRIDGE=false
USER worker
EXPOSE 9000
# Liveness, not readiness: Swarm and many scripts replace unhealthy containers, and an outage of the broker would replace
# all workers in the middle of their tasks. It needs no connection. A deployment that restarts nothing, as compose.yaml,
# may use --ready.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD ["repot", "healthcheck", "probe", "--live"]
# supervisord is process 1: it passes SIGTERM to the worker only, waits for it, and reaps orphans
STOPSIGNAL SIGTERM
CMD ["supervisord", "-c", "/app/supervisord.conf"]

FROM supervised AS database
COPY --from=build /opt/database /opt/database
ENV PATH=/opt/database/bin:$PATH

# the last target, which `docker build` builds without --target
FROM supervised AS worker
COPY --from=build /opt/worker /opt/worker
