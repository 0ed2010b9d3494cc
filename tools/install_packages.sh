#!/bin/sh
# Installs what building and testing atom needs on Debian 12 and its kin. Asks for root only if something is missing.
set -eu
packages="
  build-essential cmake ninja-build pkg-config ccache git
  clang-14 libclang-rt-14-dev
  libfmt-dev libspdlog-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev
  libicu-dev libpcre2-dev libxxhash-dev libcurl4-openssl-dev libssl-dev
  libboost1.81-dev prometheus-cpp-dev
  libgtest-dev libbenchmark-dev
  python3 python3-pip python3-venv python3-numpy ca-certificates
  chromium
"
missing=""
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing" >&2
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
$sudo apt-get update -q >&2
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends $missing >&2
