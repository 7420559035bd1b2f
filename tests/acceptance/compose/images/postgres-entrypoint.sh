#!/bin/sh
# A new cluster is made as by the official image: with a server that listens on its socket alone and
# is gone again before the lasting one starts.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    chmod 0700 "$PGDATA"
    word=$(mktemp)
    printf '%s' "$POSTGRES_PASSWORD" >"$word"
    initdb --username="$POSTGRES_USER" --pwfile="$word" --encoding=UTF8 --locale=C.UTF-8 \
        --auth-local=trust --auth-host=scram-sha-256
    rm "$word"
    printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait -o '-c listen_addresses=' start
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --wait --mode=fast stop
fi
exec "$@"
