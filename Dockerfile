# docker buildx build --platform linux/amd64,linux/arm64 --tag registry.example.com/ebbtide:0.1.0 --push .
#
# Nothing here names an architecture: each platform builds for itself, with the musl target and the C compiler that the
# Alpine image has.
FROM rust:1.95-alpine AS build
WORKDIR /build

# The dependencies first: their layer stays valid until the manifests change.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src benches/instructions \
 && echo 'fn main() {}' | tee src/main.rs > benches/instructions/main.rs \
 && touch src/lib.rs \
 && cargo build --release --locked --bin ebbtide \
 && rm -r src

COPY build.rs ./
COPY src src
# Cargo goes by modification times, and the copied files may be older than the build above.
RUN touch src/main.rs src/lib.rs \
 && cargo build --release --locked --bin ebbtide \
 && mv target/release/ebbtide /ebbtide \
 && /ebbtide --version

FROM scratch
COPY LICENSE /LICENSE
COPY --from=build /ebbtide /ebbtide
# A number, so that the kubelet can check runAsNonRoot.
USER 65532:65532
EXPOSE 14080 14090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/ebbtide"]
CMD ["run"]
