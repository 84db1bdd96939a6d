#!/usr/bin/env bash
# Checks the static binary as the image holds it: alone in a read-only root, as uid 65532, without capabilities.
#
# Needs root (for chroot and a mount namespace), the musl target of the toolchain and musl-gcc; says so and passes
# without them.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    printf 'skipped: %s\n' "$1"
    exit 0
}
fail() {
    printf 'FAILED: %s\n' "$1" >&2
    [ -f "${log:-}" ] && cat "$log" >&2
    exit 1
}

target="$(uname -m)-unknown-linux-musl"
if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || skip "chroot needs root"
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || skip "no target $target (rustup target add $target)"
    # The allocator is C.
    command -v "${CC:-musl-gcc}" >/dev/null || skip "no C compiler for musl (Debian: musl-tools)"
    unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces here"

    cargo build --release --locked --bin ebbtide --target "$target"
    binary="${CARGO_TARGET_DIR:-target}/$target/release/ebbtide"
    ldd "$binary" >/dev/null 2>&1 && ! ldd "$binary" 2>&1 | grep -q 'statically linked' && fail "not static"
    size=$(stat --format %s "$binary")
    printf 'size: %s bytes\n' "$size"
    [ "$size" -lt 12000000 ] || fail "larger than 12 MB"
    exec unshare --mount --pid --fork --mount-proc "$0" inside "$binary"
fi

# From here on in namespaces of our own: no mount and no process outlives this script.
root=$(mktemp --directory)
log="$root.log"
trap 'rm -f "$log"' EXIT
mount --make-rprivate /
mount -t tmpfs none "$root"
mkdir "$root/proc"
cp "$2" "$root/ebbtide"
mount -t proc none "$root/proc"
mount -o remount,ro "$root"

# As `runAsUser: 65532`, `drop: [ALL]`, `allowPrivilegeEscalation: false`, `readOnlyRootFilesystem: true`.
ebbtide=(setpriv --no-new-privs --inh-caps=-all
    chroot --userspec=65532:65532 --groups= "$root" /ebbtide)
export EBBTIDE_MODE=sidecar EBBTIDE_LISTEN=127.0.0.1:0 EBBTIDE_ADMIN=127.0.0.1:0
export EBBTIDE_UPSTREAM=http://127.0.0.1:9

"${ebbtide[@]}" --version
touch "$root/file" 2>/dev/null && fail "the root is not read-only"
"${ebbtide[@]}" run >"$log" 2>&1 &
run=$!
# Without /run/ebbtide the control socket is an abstract one.
"${ebbtide[@]}" status || fail "status without an answer"
grep --quiet --extended-regexp '^Uid:.65532' "/proc/$run/status" || fail "not uid 65532"
grep --quiet --extended-regexp '^CapEff:.0+$' "/proc/$run/status" || fail "capabilities are left"
resident=$(awk '/^VmRSS:/ { print $2 }' "/proc/$run/status")
printf 'resident: %s kB\n' "$resident"
# An allocator that asks for huge pages has more than twice as much.
[ "$resident" -lt 8192 ] || fail "more than 8 MiB of memory without a connection"
phase=$("${ebbtide[@]}" drain) || fail "drain without an answer"
# Its app has never accepted, so there is nothing to hold for.
[ "$phase" = lingering ] || fail "phase $phase after drain"
kill -TERM "$run"
wait "$run" || fail "exit code $?"
printf 'static image: ok\n'
