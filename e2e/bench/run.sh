#!/bin/sh
# Installs and builds what is missing, then measures. Arguments go to bench.py, or after the word `faults` to faults.py
# (`--help` lists them).
# SERIN_BIN names another gateway binary to measure than the one built here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
"$here/setup.sh"
echo "bench: building in the dist profile (some minutes the first time)"
cargo build --profile dist -p serin-bench
[ -n "${SERIN_BIN:-}" ] || cargo build --profile dist -p serin --bin serin
script=bench.py
if [ "${1:-}" = faults ]; then
    script=faults.py
    shift
fi
exec python3 "$here/$script" "$@"
