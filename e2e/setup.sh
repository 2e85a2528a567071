#!/bin/sh
# Installs the peers of the end-to-end tests (Python's grpcio and websockets) into .tools/venv, libfaketime, which shifts
# the clock of a process, Prometheus with promtool, curl, slowhttptest, and Chromium with its driver, for the console; and
# the servers that a fleet leans on: etcd, ZooKeeper, Redis and r-nacos. Does nothing if they are there.
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
if ! command -v ip >/dev/null 2>&1; then
    echo "e2e peers: installing iproute2"
    $sudo apt-get update -q
    $sudo apt-get install -y -q --no-install-recommends iproute2
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
# The tests start their own servers; those that the packages would start are in nobody's interest.
servers=
command -v etcd >/dev/null 2>&1 || servers="$servers etcd-server"
command -v redis-server >/dev/null 2>&1 || servers="$servers redis-server"
[ -e /usr/share/java/zookeeper.jar ] || servers="$servers zookeeper default-jre-headless"
if [ -n "$servers" ]; then
    echo "e2e peers: installing$servers"
    $sudo apt-get update -q
    policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] && policy=
    [ -z "$policy" ] || printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    [ -z "$policy" ] || $sudo chmod 755 "$policy"
    # shellcheck disable=SC2086  # one argument per package is what is meant
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends $servers
    [ -z "$policy" ] || $sudo rm "$policy"
    for unit in etcd redis-server; do
        $sudo systemctl disable "$unit" >/dev/null 2>&1 || true
    done
fi
rnacos="$here/../.tools/rnacos"
if ! [ -x "$rnacos/bin/rnacos" ]; then
    echo "e2e peers: building r-nacos (some minutes)"
    scratch=$(mktemp -d)
    # Built to be there soon, not to be fast; nothing of the build is kept.
    CARGO_TARGET_DIR="$scratch" CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --root "$rnacos" --version 0.8.8 rnacos || { rm -rf "$scratch"; exit 1; }
    rm -rf "$scratch"
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
