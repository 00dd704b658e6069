#!/bin/sh
# Checks everything in packaging/ and operations/ that can be checked without a container engine or a cluster:
# packaging/check.sh [--install]
# A tool that is absent is an error with its name; --install gets them all, without a container: Debian packages as root,
# the rest into TOOLS (default: .clients/packaging). PROGRAM is a built program whose settings are compared (default: the
# newest of target/debug, target/start and target/release, if there is one). Takes a minute and a half.
set -eu
cd "$(dirname "$(dirname "$(realpath "$0")")")"
tools=${TOOLS:-.clients/packaging}
mkdir -p "$tools"
tools=$(realpath "$tools")
PATH=$tools/venv/bin:$tools/bin:$PATH
export PATH

HELM=v3.19.0
ACTIONLINT=v1.7.12
DEBIAN="lintian dpkg-dev binutils systemd man-db python3-venv sip-tester xz-utils"

install_tools() {
    # shellcheck source=scripts/packages.sh
    . scripts/packages.sh
    # shellcheck disable=SC2086 # a list of words
    need $DEBIAN
    if ! cmp -s packaging/requirements.txt "$tools/requirements.txt"; then
        python3 -m venv "$tools/venv"
        "$tools/venv/bin/pip" install --quiet --disable-pip-version-check -r packaging/requirements.txt
        cp packaging/requirements.txt "$tools/requirements.txt"
    fi
    # Prometheus without a service that starts.
    if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
        (cd "$tools" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } 2>/dev/null && dpkg -x prometheus_*.deb prometheus && rm prometheus_*.deb)
        mkdir -p "$tools/bin"
        cp "$tools/prometheus/usr/bin/promtool" "$tools/prometheus/usr/bin/prometheus" "$tools/bin"
        rm -r "$tools/prometheus"
    fi
    command -v actionlint >/dev/null || GOBIN=$tools/bin go install "github.com/rhysd/actionlint/cmd/actionlint@$ACTIONLINT"
    # Minutes, once.
    command -v helm >/dev/null || GOBIN=$tools/bin go install "helm.sh/helm/v3/cmd/helm@$HELM"
}

if [ "${1-}" = "--install" ]; then
    install_tools
    # The shell remembers where it found python3 before.
    hash -r
fi

began=$(date +%s)
step() {
    echo "-- $* (after $(($(date +%s) - began)) s)"
}
fail() {
    echo "packaging/check.sh: $*" >&2
    exit 1
}

absent=""
for tool in actionlint check-jsonschema dpkg-deb docker-compose hadolint helm kubernetes-validate lintian man prometheus promtool \
    shellcheck sipp systemd-analyze yamllint; do
    command -v "$tool" >/dev/null || absent="$absent $tool"
done
[ -z "$absent" ] || fail "these tools are absent:$absent; packaging/check.sh --install gets them"

program=${PROGRAM-}
if [ -z "$program" ]; then
    # shellcheck disable=SC2012 # names without surprises
    program=$(ls -t target/debug/vivavoce target/start/vivavoce target/release/vivavoce 2>/dev/null | head -n 1 || true)
fi
# It is run in other folders.
[ -z "$program" ] || program=$(realpath "$program")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "scripts"
shellcheck -x packaging/*.sh packaging/deb/*.sh packaging/deb/handover packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm
python3 - packaging/*.py packaging/deb/*.py operations/*.py operations/grafana/*.py <<'END'
import ast, sys
for file in sys.argv[1:]:
    ast.parse(open(file).read(), file)
END

step "YAML and workflows"
yamllint -s -c packaging/.yamllint packaging/compose packaging/helm/vivavoce/Chart.yaml packaging/helm/vivavoce/values.yaml \
    packaging/helm/vivavoce/ci operations .github/workflows/release.yml
actionlint -shellcheck "$(command -v shellcheck)" .github/workflows/release.yml

step "image and compose"
hadolint packaging/Containerfile
for files in "-f compose.yaml" "-f compose.yaml -f compose.full.yaml"; do
    # shellcheck disable=SC2086 # a list of words
    (cd packaging/compose && AUTH_API_SECRET=x S3_SECRET_KEY=x GRAFANA_PASSWORD=x docker-compose $files config --quiet)
done

step "units"
# What is not installed here is taken for granted.
for unit in vivavoce.service vivavoce@.service; do
    if [ "$unit" = vivavoce.service ]; then
        cp packaging/systemd/vivavoce.service "$work/$unit"
    else
        packaging/systemd/template.sh >"$work/$unit"
    fi
    systemd-analyze security --no-pager --offline=true --threshold=20 "$work/$unit" >"$work/exposure" \
        || fail "$unit is exposed more than 2.0: $(tail -n 1 "$work/exposure")"
    echo "$unit: $(tail -n 1 "$work/exposure")"
done
sed -e 's|^ExecStart=.*|ExecStart=/bin/true|' -e 's|^Documentation=.*||' "$work/vivavoce.service" >"$work/verified.service"
systemd-analyze verify --man=no "$work/verified.service"
grep -q '^ExecStart=.* serve --takeover$' "$work/vivavoce@.service" || fail "vivavoce@.service does not take over"

step "Debian package"
# Of any program: what is in the package is the same, and it is made in seconds.
for build in one two; do
    DEB_COMPRESSION=gzip SBOM_DIR=/nowhere packaging/deb/build.sh /bin/true 0.0.1 "$work/$build" >/dev/null
done
cmp "$work"/one/*.deb "$work"/two/*.deb || fail "two builds of the same package differ"
# These are about /bin/true.
lintian --allow-root --fail-on error,warning --suppress-tags hardening-no-pie,hardening-no-bindnow,mismatched-override \
    "$work"/one/*.deb
man --warnings -l packaging/deb/vivavoce.1 >/dev/null

step "Helm chart"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
grep -qx "version: $version" packaging/helm/vivavoce/Chart.yaml || fail "the chart is not of version $version"
grep -qx "appVersion: $version" packaging/helm/vivavoce/Chart.yaml || fail "the chart is not for version $version"
cmp operations/prometheus/alerts.yml packaging/helm/vivavoce/files/alerts.yml \
    || fail "the chart has other alerts: cp operations/prometheus/alerts.yml packaging/helm/vivavoce/files"
for values in values.yaml ci/all-values.yaml ci/hostport-values.yaml; do
    rendered=$work/$(basename "$values")
    helm lint --quiet --strict --values "packaging/helm/vivavoce/$values" packaging/helm/vivavoce
    helm template voice packaging/helm/vivavoce --kube-version 1.34.0 --values "packaging/helm/vivavoce/$values" >"$rendered"
    # Kinds of the Prometheus operator are not Kubernetes' own.
    kubernetes-validate --strict --quiet --kubernetes-version 1.34 "$rendered" >"$work/validated" 2>&1 \
        || { cat "$work/validated" >&2; exit 1; }
done
if helm template voice packaging/helm/vivavoce --kube-version 1.34.0 --set sip.enabled=true --set media.mode=none >"$work/refused" 2>&1; then
    fail "the chart lets telephone calls be without UDP"
fi

step "settings of all of these"
if [ -n "$program" ]; then
    packaging/check_settings.py "$work/values.yaml" "$work/all-values.yaml" "$work/hostport-values.yaml" -- "$program"
else
    packaging/check_settings.py "$work/values.yaml" "$work/all-values.yaml" "$work/hostport-values.yaml"
fi

step "alerts and dashboard"
promtool check config operations/prometheus/prometheus.yml >"$work/promtool" || { cat "$work/promtool" >&2; exit 1; }
promtool test rules operations/prometheus/alerts_test.yml
operations/check_metrics.py
operations/grafana/dashboard.py >"$work/dashboard.json"
cmp "$work/dashboard.json" operations/grafana/dashboards/vivavoce.json \
    || fail "the dashboard is stale: operations/grafana/dashboard.py > operations/grafana/dashboards/vivavoce.json"
# Each query as a rule, as promtool reads those.
python3 - "$work/dashboard.json" >"$work/queries.yml" <<'END'
import json, sys
queries = [target["expr"] for panel in json.load(open(sys.argv[1]))["panels"] for target in panel.get("targets", [])]
plain = [query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$job", "vivavoce") for query in queries]
print(json.dumps({"groups": [{"name": "dashboard", "rules": [{"record": f"q{at}", "expr": query} for at, query in enumerate(plain)]}]}))
END
promtool check rules "$work/queries.yml" >"$work/promtool" || { cat "$work/promtool" >&2; exit 1; }

# A program with `bench`: what ./test builds, or a release.
# shellcheck disable=SC2012 # names without surprises
loader=$(ls -t target/debug/vivavoce target/release/vivavoce 2>/dev/null | head -n 1 || true)
if [ -n "$loader" ]; then
    step "the dashboard, with data of $loader under load"
    models=${MODELS_PATH-.clients/models}
    MODELS_PATH=$(realpath -m "$models") operations/grafana/with_data.py "$loader"
fi

step "what is linked"
packaging/sbom.py "$work/sbom"
python3 - "$work/sbom/sbom.cdx.json" <<'END'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()):
    sys.exit(f"the list of what is linked is not CycloneDX 1.6: {problem}")
END

step "done"
cat <<'END'
Not checked here:
- the image: that it builds, its size, its health check (release.yml does)
- the compose files and the chart at work, and Grafana itself (the dashboard's queries are)
- the package on a machine: packaging/deb/trial.sh OLD.deb NEW.deb (root, systemd-nspawn, debootstrap)
- the build of a release: packaging/dist.sh
END
