# One image for every role; docker-compose.yml says which part a container is.
FROM python:3.12-slim-bookworm

# bubblewrap: the node's sandbox. tini ends what an action may leave as process 1's children.
RUN apt-get update \
 && apt-get install --no-install-recommends -y bubblewrap tini curl \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 tangram \
 && install -d -o tangram -g tangram /var/lib/tangram

WORKDIR /opt/tangram
COPY requirements/core.lock requirements/core.lock
RUN pip install --no-cache-dir --requirement requirements/core.lock
COPY . .

USER tangram
ENV TANGRAM_HOME=/var/lib/tangram PYTHONUNBUFFERED=1 PYTHONPATH=/opt/tangram
VOLUME /var/lib/tangram
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "uvicorn", "tangram_web.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-access-log"]
