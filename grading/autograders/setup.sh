#!/bin/bash
# Installs what grading a submission needs, from the wheels beside this file, without a network. Gradescope runs this once, as root.
# bash setup.sh [FOLDER]
set -euo pipefail
umask 022

here=$(cd "$(dirname "$0")" && pwd)
place=${1:-/opt/distributed-training-course}
wanted=$(cat "$here/course/python-version")
wheels=$(cd "$here" && ls wheels 2>/dev/null || true)

if [ -n "${COURSE_PYTHON:-}" ]; then
  exit 0 # this Python already has everything
fi
if [ -x "$place/bin/python" ] && [ "$(cat "$place/wheels.txt" 2>/dev/null)" = "$wheels" ]; then
  exit 0
fi

found=
for python in "python$wanted" python3; do
  if command -v "$python" >/dev/null; then
    has=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$has" = "$wanted" ] && found=$python && break
  fi
done
if [ -z "$found" ]; then
  echo "setup.sh: this autograder is for Python $wanted, and this image has ${has:-none}. On Gradescope, choose the base image" \
    "Ubuntu 24.04, which has 3.12. For another Python, 3.11 or newer, build it again with PYTHON_VERSION=..." >&2
  exit 1
fi

rm -rf "$place"
"$found" -m venv --without-pip "$place"
cd "$here/wheels"
"$place/bin/python" "$(ls pip-*.whl)/pip" install --quiet --no-index --no-deps --no-cache-dir --disable-pip-version-check \
  --root-user-action=ignore ${COURSE_PIP:-} $(ls ./*.whl | grep -v '/pip-')
echo "$wheels" >"$place/wheels.txt"
