# The worker with its health sidecar under supervisord, and, as another target, Flower:
#
#   docker build -t worker .
#   docker build -t flower --target flower .
#
# Your application goes on top, where the worker looks for it:
#
#   FROM worker
#   COPY --chown=0:0 shop /app/shop
#   ENV WORKER_APP=shop.celery:app
#
# No setting and no password is in the image: what a deployment decides comes from its environment.

FROM python:3.13-slim AS build
WORKDIR /build
# an environment without pip: what runs in production installs nothing
RUN python3 -m venv --without-pip /opt/worker \
 && python3 -m venv --without-pip /opt/flower
# what changes seldom comes first, so that a change of the code installs nothing anew; with hashes, so that nobody on
# the way here puts something else in its place; wheels alone, so that nothing needs a compiler or runs at installation
COPY requirements.txt requirements-flower.txt requirements-build.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-build.txt \
 && pip --python /opt/worker/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes --only-binary :all: -r requirements.txt \
 && pip --python /opt/flower/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes --only-binary :all: -r requirements-flower.txt
COPY pyproject.toml README.md LICENSE ./
COPY repot repot
# byte code stays in: each probe is a new process, and would compile Celery again. Tests that packages bring go
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheel . \
 && for environment in worker flower; do \
      pip --python /opt/$environment/bin/python install --no-cache-dir --disable-pip-version-check \
        --no-deps --no-index /build/wheel/*.whl; \
      find /opt/$environment/lib -depth -type d '(' -name tests -o -name test ')' -path '*/site-packages/*' \
        -exec rm -r {} +; \
    done

FROM python:3.13-slim AS base
# a user that is nobody else's; its number is given, so that volumes and Kubernetes can name it
RUN groupadd --gid 10001 worker \
 && useradd --uid 10001 --gid worker --no-create-home --home-dir /tmp --shell /usr/sbin/nologin worker
# what is logged must not wait in a buffer; a root file system that cannot be written to takes no byte code
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

# the last one, which is what `docker build` makes without --target
FROM base AS worker
COPY --from=build /opt/worker /opt/worker
COPY repot/init/files/supervisord.conf ./
# supervisord's own two files: the root file system may be read-only, /tmp never is
RUN sed -i 's,%(here)s/supervisord\.,/tmp/supervisord.,' supervisord.conf
# what supervisord.conf must be told and `repot init` writes into .env; and which worker is judged beside a bridge
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
# That it lives, not that it is ready: Swarm, and many a script, replaces a container that is called unhealthy, and all
# workers would be replaced in mid-task when the broker is away for a minute. The question costs no connection. Where
# nobody restarts on it, as in compose.yaml, a deployment may ask for --ready.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD ["repot", "healthcheck", "probe", "--live"]
# supervisord is process 1: it takes SIGTERM, hands it on to the worker alone, waits for it, and buries orphans
STOPSIGNAL SIGTERM
CMD ["supervisord", "-c", "/app/supervisord.conf"]
