#!/bin/sh
# Installs what a build needs and is missing on a fresh Debian: a C compiler, make, cmake (zlib-ng needs it) and protoc
# (the etcd client needs it).
set -eu
missing=
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
command -v protoc >/dev/null 2>&1 || missing="$missing protobuf-compiler"
[ -e /usr/include/google/protobuf/descriptor.proto ] || missing="$missing libprotobuf-dev"
command -v make >/dev/null 2>&1 || missing="$missing make"
[ -z "$missing" ] && exit 0
echo "tools: installing$missing"
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -q
# shellcheck disable=SC2086  # one argument per package is what is meant
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -qy --no-install-recommends $missing
