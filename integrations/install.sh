#!/bin/sh
# Installs Stepscope from the checkout that this file lies in into an environment of its own, with
# the versions of the checkout's lock: sh integrations/install.sh FOLDER makes FOLDER/bin/stepscope.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
python3 -m venv "$1"
sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' "$source/requirements/dev.lock" >"$1/pinned.txt"
install() {
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --constraint "$1/pinned.txt" "$2" "$3"
}
install "$1" hatchling editables
install "$1" --no-build-isolation "$source"
