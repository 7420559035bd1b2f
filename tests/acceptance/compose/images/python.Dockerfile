# Stands in for python:3.12-slim-trixie: Debian's Python, which installs only from what it is given.
FROM stand-in
COPY wheels /wheels
# Debian's own packages are let alone, as pip cannot remove them.
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_BREAK_SYSTEM_PACKAGES=1 PIP_IGNORE_INSTALLED=1
CMD ["python3"]
