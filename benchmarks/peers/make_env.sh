#!/usr/bin/env bash
# Make the environment of a peer if it is missing or does not match its requirements, and print the
# path of its python. Usage: make_env.sh NAME. Folder: $SKFED_PEERS, else ~/.cache/skfed-peers.
set -u
name=${1:?usage: make_env.sh NAME}
wanted=$(cd "$(dirname "$0")" && pwd)/$name
env=${SKFED_PEERS:-$HOME/.cache/skfed-peers}/$name
stamp=$env/installed.txt
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
  echo "$1" >&2
  exit 1
}

install() {
  "$env/bin/python" -m pip install -q --disable-pip-version-check "$@" >"$log" 2>&1 ||
    fail "cannot be installed: $(grep -m1 '^ERROR' "$log" || tail -n1 "$log")"
}

[ -f "$wanted/requirements.txt" ] || fail "no such peer: $name"
if ! cat "$wanted"/*.txt | cmp -s - "$stamp"; then
  rm -rf "$env"
  { mkdir -p "$(dirname "$env")" && "${PYTHON:-python3}" -m venv "$env"; } >"$log" 2>&1 ||
    fail "no virtual environment: $(tail -n1 "$log")"
  install -r "$wanted/requirements.txt"
  if [ -f "$wanted/no-deps.txt" ]; then install --no-deps -r "$wanted/no-deps.txt"; fi
  cat "$wanted"/*.txt >"$stamp"
fi
echo "$env/bin/python"
