#!/bin/sh
# Makes .bench/venv, the environment of the peers that `make bench` compares with, and installs the programs it
# wants where that is allowed. What cannot be had is said in the table.
set -eu
cd "$(dirname "$0")/../.."

unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1

say() { echo "bench set-up: $*" >&2; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@" 2>/dev/null; fi; }

debian_packages() {
    missing=
    for package in aria2 curl nginx-light openssl; do
        # Another package may bring the program: what counts is that it is there.
        program=$package
        case $package in aria2) program=aria2c ;; nginx-light) program=nginx ;; esac
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null && as_root true || { say "not installed, and not to be had here:$missing"; return 0; }
    say "installing Debian packages:$missing"
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null 2>&1 || true
    # shellcheck disable=SC2086 # a list of names
    DEBIAN_FRONTEND=noninteractive as_root apt-get -qq -o DPkg::Lock::Timeout=300 install --yes \
        --no-install-recommends $missing >/dev/null 2>&1 || say "could not be installed:$missing"
}

sum() { { pwd -P && "$python" --version && cat ops/bench/setup.sh ops/bench/requirements.lock; } | cksum; }

python=${PYTHON:-.venv/bin/python}
mkdir -p .bench
debian_packages
[ "$(cat .bench/.installed 2>/dev/null)" = "$(sum)" ] && exit 0
say "installing the peers into .bench/venv"
rm -rf .bench/venv .bench/.installed
# Told which one by --python: left to itself, uv installs into the environment that it runs from.
if "$python" -m uv --version >/dev/null 2>&1; then
    "$python" -m uv venv --quiet --python "$("$python" -c 'import sys; print(sys.executable)')" .bench/venv &&
        "$python" -m uv pip install --quiet --python .bench/venv/bin/python --require-hashes \
            -r ops/bench/requirements.lock
else
    "$python" -m venv .bench/venv &&
        .bench/venv/bin/python -m pip install --quiet --require-hashes -r ops/bench/requirements.lock
fi || {
    rm -rf .bench/venv
    say "the peers' packages could not be installed; their rows will be marked as missing"
    exit 0
}
sum >.bench/.installed
