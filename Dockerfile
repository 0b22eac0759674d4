# Runs the demo on Debian 12, without any hardware:
#
#     docker build --platform linux/amd64 -t zc_perception .
#     docker run --rm zc_perception
#
# linux/amd64, because ROS 2 has no wheels for arm64.

# What make needs; the dev container stops here.
FROM debian:bookworm-slim AS tools
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates g++ gcc git libc6-dev make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/bash zc

FROM tools AS demo
RUN install --directory --owner=zc --group=zc /zc_perception
WORKDIR /zc_perception
COPY --chown=zc:zc . .
USER zc
RUN make env
CMD ["make", "demo"]
