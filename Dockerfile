# One image for all roles; docker-compose.yml sets the role of each container.
FROM python:3.12-slim-trixie

# bubblewrap: the node's sandbox. tini reaps orphaned processes of actions.
# postgresql-client: `manage.py backup` and `restore`; the same version as the server in compose.
RUN apt-get update \
 && apt-get install --no-install-recommends -y bubblewrap tini curl postgresql-client \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 tangram \
 && install -d -o tangram -g tangram -m 0700 /var/lib/tangram /var/lib/tangram-bodies /var/backups/tangram

WORKDIR /opt/tangram
COPY requirements/core.lock requirements/s3.lock requirements/
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement requirements/core.lock --requirement requirements/s3.lock
COPY . .
# Compiled here, since the user of the processes cannot write bytecode to this folder.
RUN python -m compileall -q -j 0 .

USER tangram
ENV TANGRAM_HOME=/var/lib/tangram PYTHONUNBUFFERED=1 PYTHONPATH=/opt/tangram
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "uvicorn", "tangram_web.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--http", "tangram_web.serving.protocol:LimitedHttp", "--timeout-graceful-shutdown", "5", "--ws-per-message-deflate", "false", "--no-access-log"]
