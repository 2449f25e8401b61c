#!/bin/sh
# Makes .venv from the locked requirements and installs this checkout into it. Every make target calls it, so it
# returns at once when nothing changed. It needs Python 3.11 to 3.14, and reaches for the rest by itself.
set -eu
cd "$(dirname "$0")/.."

# Debian packages that tests want; installed where that is allowed, else the tests that need them say so.
DEBIAN_PACKAGES="apache2-bin busybox caddy e2fsprogs libfaketime lighttpd lighttpd-mod-deflate nginx-light prometheus qbittorrent-nox rabbitmq-server strace util-linux xfsprogs"
command -v npm >/dev/null || DEBIAN_PACKAGES="$DEBIAN_PACKAGES nodejs npm"

# A caller's own Python settings must not leak into the environment that is made here.
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# uv would otherwise trust only the certificates it brings, pip and the rest of the machine trust the system's.
export UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1

say() { echo "set-up: $*" >&2; }

die() {
    say "$*"
    exit 1
}

# Runs a command and shows what it printed only if it fails.
quietly() {
    output=$("$@" 2>&1) && return
    printf '%s\n' "$output" >&2
    return 1
}

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

suits() {
    case $(version "$1") in 3.11 | 3.12 | 3.13 | 3.14) ;; *) return 1 ;; esac
}

# The stamps hold a checksum of all that the environment was made from. The folder is part of it, because a
# copied .venv still points at the checkout it was copied from.
sum() { { version .venv/bin/python && pwd -P && cat "$@"; } 2>/dev/null | cksum; }
locked() { sum ops/setup.sh ops/requirements.lock ops/npm/package-lock.json; }
installed() { sum ops/setup.sh ops/requirements.lock pyproject.toml; }
fresh() { [ "$(cat ".venv/.$1" 2>/dev/null)" = "$($1)" ]; }

# PYTHON, when given, overrules an environment that was made with another version.
kept() { [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version .venv/bin/python)" ]; }

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3}; do
        if suits "$name"; then
            # Not sys.executable: with .venv activated that is inside what is about to be removed.
            "$name" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        die "PYTHON=$PYTHON is not a Python 3.11 to 3.14."
    fi
    die "no Python 3.11 to 3.14 on the PATH (python3 is $(version python3 || echo missing)); install one, or name it: make PYTHON=/path/to/python3"
}

# One set-up at a time in one checkout. The lock is on an open file, so it ends with this process however that ends.
one_at_a_time() {
    if [ ! -w . ] || { [ -e .setup.lock ] && [ ! -w .setup.lock ]; }; then
        die "$(id -un 2>/dev/null || id -u) may not write to $(pwd -P)."
    fi
    exec 9>.setup.lock
    "$1" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("set-up: waiting for another set-up of this checkout", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@" 2>/dev/null
    fi
}

debian_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    say "installing Debian packages: $*"
    # A bare image has no package lists; a broken foreign source must not stand in the way of the others.
    # A service that a package starts must not inherit, and so keep, the lock of this set-up.
    quietly as_root apt-get -qq -o DPkg::Lock::Timeout=300 update 9>&- || true
    # Nor is any started: tests run servers of their own. Debian asks this file, which is there in containers only.
    # shellcheck disable=SC2016 # expanded by the inner shell
    quietly as_root sh -c '
        ask=/usr/sbin/policy-rc.d
        if [ ! -e $ask ]; then
            trap "rm -f $ask" EXIT
            printf "#!/bin/sh\nexit 101\n" >$ask
            chmod 755 $ask
        fi
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --yes \
            --no-install-recommends "$@"' sh "$@" 9>&-
}

debian_packages() {
    missing=
    for package in $DEBIAN_PACKAGES; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    # shellcheck disable=SC2086 # a list of names
    [ -z "$missing" ] || debian_install $missing ||
        say "some tests want$missing, which could not be installed here."
}

# A web server that tests download from; without npm the tests that need it say so.
npm_packages() {
    command -v npm >/dev/null || return 0
    mkdir -p .venv/npm
    cp ops/npm/package.json ops/npm/package-lock.json .venv/npm/
    (cd .venv/npm && quietly npm ci --omit=dev --ignore-scripts --no-audit --no-fund 9>&-) ||
        say "the packages of ops/npm could not be installed here; the tests that want them say so."
}

# A pip that lives elsewhere can install into our environment since 22.3.
foreign_pip() {
    for pip in "$python -m pip" pip3 pip; do
        if $pip --python .venv/bin/python --version >/dev/null 2>&1; then
            echo "$pip --python .venv/bin/python"
            return
        fi
    done
    return 1
}

# Debian keeps the part of Python that puts pip into an environment in a package of its own.
make_environment() {
    rm -f .venv/.locked .venv/.installed
    rm -rf .venv
    if "$python" -m venv .venv >/dev/null 2>&1; then
        pip=".venv/bin/python -m pip"
    elif [ -z "${python##/usr/bin/*}" ] && debian_install "python$(version "$python")-venv" &&
        "$python" -m venv --clear .venv >/dev/null 2>&1; then
        pip=".venv/bin/python -m pip"
    elif "$python" -m venv --clear --without-pip .venv >/dev/null 2>&1 && pip=$(foreign_pip); then
        :
    elif command -v virtualenv >/dev/null && quietly virtualenv --clear --quiet -p "$python" .venv; then
        pip=".venv/bin/python -m pip"
    elif command -v uv >/dev/null && quietly uv venv --quiet --clear --python "$python" .venv; then
        pip="uv pip"
    else
        die "$python cannot make an environment with pip; install the package python$(version "$python")-venv (or pip, virtualenv or uv) and run this again."
    fi
    echo "$pip" >.venv/.pip
}

# shellcheck disable=SC2046 # a command and its arguments
in_environment() { VIRTUAL_ENV="$PWD/.venv" quietly $(cat .venv/.pip) "$@"; }

if fresh locked && fresh installed && kept; then
    exit 0
fi
python=$(find_python)
one_at_a_time "$python"

if ! fresh locked || ! kept; then
    debian_packages
    say "making .venv with Python $(version "$python")"
    make_environment
    say "installing the locked packages (a minute or two the first time)"
    in_environment install --quiet --require-hashes --only-binary :all: -r ops/requirements.lock ||
        die "the locked packages could not be installed, see above."
    npm_packages
    locked >.venv/.locked
fi
if ! fresh installed; then
    say "installing dlpipe from this checkout"
    in_environment install --quiet --no-deps --no-build-isolation -e . || die "dlpipe could not be installed, see above."
    in_environment check || die "ops/requirements.lock does not fit pyproject.toml any more; run: make lock"
    installed >.venv/.installed
fi
