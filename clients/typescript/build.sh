#!/bin/sh
# Packs the tarball, and installs it into a new folder with what its tests need: build.sh ENVIRONMENT
set -eu
mkdir -p "${1:?build.sh ENVIRONMENT}"
environment=$(CDPATH='' cd -- "$1" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# From a copy, so that nothing is left in the repository.
rm -rf "$environment/build" "$environment/node_modules" "$environment"/*.tgz
mkdir "$environment/build"
cd -- "$here"
cp -R package.json package-lock.json tsconfig.json README.md LICENSE src "$environment/build"
cd -- "$environment/build"
npm ci --silent --no-audit --no-fund --ignore-scripts
npm run --silent build
npm pack --silent --ignore-scripts --pack-destination "$environment"

cp "$here/tests/package.json" "$here/tests/package-lock.json" "$environment"
cd -- "$environment"
npm ci --silent --no-audit --no-fund --ignore-scripts
npm install --silent --no-audit --no-fund --ignore-scripts --no-save --prefer-offline ./vivavoce-client-*.tgz
