#!/bin/sh
# Installs the peers of the end-to-end tests (Python's grpcio and websockets) into .tools/venv, libfaketime, which shifts
# the clock of a process, Prometheus with promtool, curl, slowhttptest, and Chromium with its driver, for the console.
# Does nothing if they are there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv="$here/../.tools/venv"
wanted="$here/python/requirements.txt"
stamp="$venv/installed.txt"

sudo=$(command -v sudo || true)
[ "$(id -u)" = 0 ] && sudo=
if ! ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1; then
    echo "e2e peers: installing libfaketime"
    $sudo apt-get update -q
    $sudo apt-get install -y -q libfaketime
fi
if ! command -v promtool >/dev/null 2>&1; then
    echo "e2e peers: installing prometheus"
    $sudo apt-get update -q
    $sudo apt-get install -y -q --no-install-recommends prometheus
    # The tests start their own; the one that the package starts is in nobody's interest.
    { $sudo systemctl disable --now prometheus || $sudo service prometheus stop; } >/dev/null 2>&1 || true
fi
if ! command -v curl >/dev/null 2>&1; then
    echo "e2e peers: installing curl"
    $sudo apt-get install -y -q curl
fi
if ! command -v slowhttptest >/dev/null 2>&1; then
    echo "e2e peers: installing slowhttptest"
    $sudo apt-get update -q
    $sudo apt-get install -y -q --no-install-recommends slowhttptest
fi
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    echo "e2e peers: installing chromium and its driver"
    $sudo apt-get update -q
    $sudo apt-get install -y -q --no-install-recommends chromium chromium-driver
fi
if cmp -s "$wanted" "$stamp"; then
    echo "e2e peers: present"
    exit 0
fi
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    echo "e2e peers: installing python3-venv"
    $sudo apt-get update -q
    $sudo apt-get install -y -q python3-venv
fi
echo "e2e peers: making $venv"
python3 -m venv --clear "$venv"
echo "e2e peers: installing $(grep -v '^#' "$wanted" | tr '\n' ' ')"
"$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r "$wanted"
cp "$wanted" "$stamp"
echo "e2e peers: installed"
