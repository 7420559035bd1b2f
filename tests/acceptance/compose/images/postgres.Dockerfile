# Stands in for postgres:17: Debian's server, with the folders, signal and manners of the official image.
FROM stand-in
ENV PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data
RUN install -d -o postgres -g postgres -m 1777 /var/lib/postgresql/data \
 && install -d -o postgres -g postgres -m 3777 /var/run/postgresql
COPY postgres-entrypoint.sh /usr/local/bin/
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint.sh"]
CMD ["postgres", "-c", "listen_addresses=*"]
