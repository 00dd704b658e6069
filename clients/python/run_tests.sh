#!/bin/sh
# Runs the tests with an environment of build.sh: VIVAVOCE_URL=... VIVAVOCE_TOKEN=... run_tests.sh ENVIRONMENT [TEST...]
# The server must require the token, and have rooms and recordings.
set -eu
environment=$(CDPATH='' cd -- "${1:?run_tests.sh ENVIRONMENT}" && pwd)
shift
: "${VIVAVOCE_URL:?the server}" "${VIVAVOCE_TOKEN:?the token of the server}"
cd -- "$(dirname -- "$0")"

"$environment/bin/python" generate.py --check
"$environment/bin/mypy" --cache-dir="$environment/mypy" src generate.py
# Not from this folder: what is tested is the wheel that is installed.
cd tests
exec "$environment/bin/python" -B -m unittest "${@:-discover}"
