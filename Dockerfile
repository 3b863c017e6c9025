# The image of Tollgate.
#
#   docker build -t tollgate:local --build-arg TOLLGATE_REVISION=$(git rev-parse --short HEAD) .     builds it from source
#   docker build -t tollgate:local --target prebuilt --build-arg BINARY=target/dist/tollgate .         copies that binary
#
# The configuration sets its address. The default is loopback, which is unreachable from outside of
# the container.

ARG RUST_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${RUNTIME_IMAGE} AS base
# The trusted authorities for `rediss://` without a `ca_file`. The slim image has no list of them.
RUN [ -e /etc/ssl/certs/ca-certificates.crt ] \
    || { apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*; }
RUN groupadd --system --gid 10001 tollgate \
    && useradd --system --uid 10001 --gid tollgate --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tollgate
# For `overrides.file: /var/lib/tollgate/overrides.jsonl`. It is writable also with --read-only.
RUN mkdir /var/lib/tollgate && chown 10001:10001 /var/lib/tollgate
VOLUME /var/lib/tollgate
# Envoy Gateway runs this name: `tollgate envoy-ratelimit`.
RUN ln -s /usr/local/bin/tollgate /bin/ratelimit
# By its number, since Kubernetes must see that it is not root.
USER 10001:10001
EXPOSE 7070
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["tollgate", "health"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]

# The builder without BuildKit runs every stage above its target. So this stage stands above the
# build from source. Without BINARY it copies a file that always exists, so that an unrelated build
# does not fail.
FROM base AS prebuilt
ARG BINARY=Cargo.toml
COPY ${BINARY} /usr/local/bin/tollgate

FROM ${RUST_IMAGE} AS builder
# The revision in `tollgate_build_info`.
ARG TOLLGATE_REVISION
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --bin tollgate

FROM base AS runtime
COPY --from=builder /src/target/dist/tollgate /usr/local/bin/tollgate
