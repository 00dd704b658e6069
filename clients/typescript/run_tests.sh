#!/bin/sh
# Runs the tests with a folder of build.sh:
# VIVAVOCE_URL=... VIVAVOCE_TOKEN=... VIVAVOCE_PAGE_PORT=... run_tests.sh ENVIRONMENT [TEST-FILE...]
# The server must require the token, have rooms and recordings, and SERVER_CORS_ORIGINS=http://127.0.0.1:$VIVAVOCE_PAGE_PORT.
set -eu
environment=$(CDPATH='' cd -- "${1:?run_tests.sh ENVIRONMENT}" && pwd)
shift
: "${VIVAVOCE_URL:?the server}" "${VIVAVOCE_TOKEN:?the token of the server}" "${VIVAVOCE_PAGE_PORT:?the port of a page}"
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

node "$here/generate.mjs" --check
# From there, where what is found by its name is the tarball that is installed.
rm -rf "$environment/tests"
mkdir "$environment/tests"
cp "$here"/tests/*.mjs "$here/README.md" "$environment/tests"
cd -- "$environment/tests"
[ $# -gt 0 ] || set -- *.test.mjs
exec node --test --test-concurrency=3 "$@"
