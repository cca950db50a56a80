# Stands in for postgres:17 where that cannot be pulled: the distribution's server with the image's variables, user and port.
FROM python:3.13-slim
USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends postgresql \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ 2>/dev/null || true
RUN mkdir -p /var/lib/postgresql/data /var/run/postgresql \
 && chown -R postgres:postgres /var/lib/postgresql /var/run/postgresql \
 && printf '%s\n' '#!/bin/sh' 'set -eu' \
    'data=${PGDATA:-/var/lib/postgresql/data}' \
    'if [ ! -s "$data/PG_VERSION" ]; then' \
    '  printf %s "$POSTGRES_PASSWORD" >/tmp/password' \
    '  initdb --pgdata="$data" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8' \
    '  rm /tmp/password' \
    '  echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"' \
    '  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$data" postgres' \
    'fi' \
    'exec postgres -D "$data" -c listen_addresses="*"' >/usr/local/bin/docker-entrypoint.sh \
 && chmod +x /usr/local/bin/docker-entrypoint.sh
USER postgres
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
