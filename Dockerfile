# One image for every role; docker-compose.yml says which part a container is.
FROM python:3.12-slim-trixie

# bubblewrap: the node's sandbox. tini ends what an action may leave as process 1's children.
# postgresql-client: `manage.py backup` and `restore`; of the same version as the server of compose.
RUN apt-get update \
 && apt-get install --no-install-recommends -y bubblewrap tini curl postgresql-client \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 tangram \
 && install -d -o tangram -g tangram -m 0700 /var/lib/tangram /var/backups/tangram

WORKDIR /opt/tangram
COPY requirements/core.lock requirements/core.lock
RUN pip install --no-cache-dir --no-deps --requirement requirements/core.lock
COPY . .
# The user of the parts cannot write here: compiled now, or again at every start.
RUN python -m compileall -q -j 0 .

USER tangram
ENV TANGRAM_HOME=/var/lib/tangram PYTHONUNBUFFERED=1 PYTHONPATH=/opt/tangram
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "uvicorn", "tangram_web.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--timeout-graceful-shutdown", "5", "--ws-per-message-deflate", "false", "--no-access-log"]
