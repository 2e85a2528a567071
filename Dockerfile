# The gateway in a small image that runs as nobody in particular.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN make release

FROM debian:bookworm-slim
# Certificates of the authorities, for TLS towards upstreams.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /etc/serin /var/lib/serin \
    && chown 65532:65532 /etc/serin /var/lib/serin
COPY --from=build /src/target/dist/serin /usr/local/bin/serin
USER 65532:65532
WORKDIR /var/lib/serin
# All that it writes: state_dir belongs here. Everything else may be read-only, and no capability is needed but
# NET_BIND_SERVICE for ports below 1024:
#   docker run --read-only --cap-drop ALL --cap-add NET_BIND_SERVICE --security-opt no-new-privileges \
#     -v ./conf:/etc/serin:ro -v state:/var/lib/serin serin
VOLUME ["/var/lib/serin"]
STOPSIGNAL SIGTERM
EXPOSE 8080
# Asks the admin API on the container's own loopback address.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/local/bin/serin", "health"]
ENTRYPOINT ["/usr/local/bin/serin"]
CMD ["run", "--config", "/etc/serin/serin.yaml"]
