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

# Print the path of a Python of a version: on the PATH, pyenv's or uv's.
find_python() {
  "python$1" --version >/dev/null 2>&1 && command -v "python$1" && return
  for found in "$HOME/.pyenv/versions/$1".*/bin/python; do
    [ -x "$found" ] && echo "$found" && return
  done
  uv python find "$1" 2>/dev/null
}

install() {
  "$env/bin/python" -m pip install -q --disable-pip-version-check "$@" >"$log" 2>&1
}

# Make the environment with a Python and pip's options for the requirements.
make_env() {
  rm -rf "$env"
  { mkdir -p "$(dirname "$env")" && "$1" -m venv "$env"; } >"$log" 2>&1 || return
  install "${@:2}" -r "$wanted/requirements.txt" || return
  [ ! -f "$wanted/no-deps.txt" ] || install --no-deps -r "$wanted/no-deps.txt"
}

make_any_env() {
  python=${PYTHON:-python3}
  if [ ! -f "$wanted/python.txt" ]; then
    make_env "$python"
  else
    # Where the version that a peer declares, or its packages for it, cannot be had, try this one.
    newer=$(find_python "$(cat "$wanted/python.txt")") && make_env "$newer" ||
      make_env "$python" --ignore-requires-python
  fi
}

[ -f "$wanted/requirements.txt" ] || fail "no such peer: $name"
if ! cat "$wanted"/*.txt | cmp -s - "$stamp"; then
  make_any_env || fail "cannot be installed: $(grep -m1 '^ERROR' "$log" || tail -n1 "$log")"
  cat "$wanted"/*.txt >"$stamp"
fi
echo "$env/bin/python"
