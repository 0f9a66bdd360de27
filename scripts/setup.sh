#!/bin/sh
# Makes the virtual environment. Names what is missing, with the command that installs it.
# usage: setup.sh VENV   (PYTHON and CACHE from the environment)
set -eu
venv=$1
python=${PYTHON:-python3}

need() { # need TOOL PACKAGE
    command -v "$1" >/dev/null 2>&1 && return
    echo "meshnet needs \`$1\`, which is missing. On Debian or Ubuntu: apt-get install $2" >&2
    exit 1
}
need "$python" python3
need cc gcc
need c++ g++
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "meshnet needs Python 3.11 or newer; $python is $("$python" -V). Set PYTHON=..." >&2
    exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "Python's venv module is missing. On Debian or Ubuntu: apt-get install python3-venv" >&2
    exit 1
}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
$pip install --upgrade 'pip>=24'
wheel=$("$venv/bin/python" scripts/llama_wheel --cache "$CACHE/wheels")
$pip install "$wheel"
$pip install -e '.[dev]'
touch "$venv/bin/.ready"
