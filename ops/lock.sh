#!/bin/sh
# Writes the lock files from pyproject.toml. A version stays until --upgrade is given or its range excludes it.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
# As in set-up: trust what the machine trusts.
export UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1

# One file for every platform and Python. Only packages that come as wheels: set-up builds nothing unlocked.
compile() {
    echo "$1"
    uv pip compile --output-file "$@" --universal --python-version 3.11 --generate-hashes --only-binary :all: \
        --custom-compile-command 'make lock' --quiet >/dev/null
}

compile ops/requirements.lock "$@" pyproject.toml --all-extras

# The image runs and is built with the versions that the tests ran with.
compile ops/requirements-runtime.lock "$@" pyproject.toml --extra postgres --extra s3 \
    --constraint ops/requirements.lock
"$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
    compile ops/requirements-build.lock "$@" - --no-annotate --constraint ops/requirements.lock

# The peers that `make bench` compares with have an environment of their own.
compile ops/bench/requirements.lock "$@" ops/bench/requirements.in
