#!/bin/sh
# Builds the wheel, and installs it into a new environment with what its tests need: [PYTHON=python3] build.sh ENVIRONMENT
set -eu
environment=${1:?build.sh ENVIRONMENT}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

"${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements-dev.txt"
# Without isolation: hatchling is installed already, in the version that is pinned.
"$environment/bin/python" -m build --no-isolation --wheel --outdir "$environment/dist" "$here"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$environment"/dist/vivavoce-*.whl
