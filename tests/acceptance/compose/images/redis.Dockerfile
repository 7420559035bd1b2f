# Stands in for redis:7: Debian's redis-server, with the folder and the user of the official image.
FROM stand-in
RUN install -d -o redis -g redis /data
VOLUME /data
WORKDIR /data
CMD ["redis-server"]
