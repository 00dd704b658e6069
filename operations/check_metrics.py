#!/usr/bin/env python3
"""Compares the metrics that alerts and dashboards ask for with those that the server has.

operations/check_metrics.py reads names, kinds and labels from the sources in src/telemetry, where all of them are
declared, because a running server shows families of metrics only once something has happened. It fails on a metric or
label that does not exist, on an alert without a runbook or a test, and on a runbook without an alert.
"""

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TELEMETRY = ROOT / "src" / "telemetry"
# Given by Prometheus, or by the rules themselves.
ALWAYS = {"job", "instance", "le"}
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


def declared() -> dict[str, set[str]]:
    """The names of the samples, each with its labels."""
    samples: dict[str, set[str]] = {"up": set()}
    labels: dict[str, set[str]] = {}
    for file in [TELEMETRY / "metrics.rs", *sorted((TELEMETRY / "metrics").glob("*.rs"))]:
        text = file.read_text().split("#[cfg(test)]")[0]
        for name, body in re.findall(r"EncodeLabelSet\)\]\n(?:pub )?struct (\w+) \{(.*?)\n\}", text, re.S):
            labels[name] = set(re.findall(r"^\s*(?:pub )?(\w+):", body, re.M))
        fields = {
            name: (of, kind)
            for name, of, kind in re.findall(r"^    (\w+): (?:Family<(\w+), )?(Counter|Gauge|Delays|Durations)\b", text, re.M)
        }
        for unit, name, field in re.findall(
            r'register(_with_unit)?\(\s*"(\w+)",\s*"[^"]*",\s*(?:Unit::Seconds,\s*)?self\.(\w+)\.clone\(\)', text
        ):
            of, kind = fields[field]
            kind = {"Counter": "counter", "Gauge": "gauge"}.get(kind, "histogram")
            seconds = "_seconds" if unit else ""
            for suffix in SUFFIXES[kind]:
                samples[f"vivavoce_{name}{seconds}{suffix}"] = labels[of] if of else set()
        for kind, name in re.findall(r'register\("(build)_info", "[^"]*", (\w+)\)', text):
            samples["vivavoce_build_info"] = labels["Build"]
        for name in re.findall(r'"(process_\w+)"', text):
            samples[f"{name}_total" if name == "process_cpu_seconds" else name] = set()
    return samples


def problems_of(expression: str, samples: dict[str, set[str]]) -> list[str]:
    problems = []
    used: set[str] = set()
    for name, selector in re.findall(r"\b(vivavoce_\w+|process_\w+|up)\b(?:\{([^}]*)\})?", expression):
        if name not in samples:
            problems.append(f"there is no metric {name}")
            continue
        used |= samples[name]
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", selector):
            if label not in samples[name] | ALWAYS:
                problems.append(f"{name} has no label {label}")
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        for label in filter(None, (part.strip() for part in group.split(","))):
            if label not in used | ALWAYS:
                problems.append(f"none of its metrics has a label {label}")
    return problems


def expressions(panel: dict):
    for target in panel.get("targets", []):
        yield panel.get("title", "?"), target["expr"]
    for inner in panel.get("panels", []):
        yield from expressions(inner)


def main() -> int:
    samples = declared()
    problems = []
    if len(samples) < 60:
        problems.append(f"only {len(samples)} samples were found in src/telemetry: has the way they are declared changed?")
    prometheus = ROOT / "operations" / "prometheus"
    alerts = {}
    for group in yaml.safe_load((prometheus / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            alerts[rule["alert"]] = rule
            problems += [f"{rule['alert']}: {problem}" for problem in problems_of(rule["expr"], samples)]
    tested = {
        test["alertname"]
        for unit in yaml.safe_load((prometheus / "alerts_test.yml").read_text())["tests"]
        for test in unit["alert_rule_test"]
        if test["exp_alerts"]
    }
    problems += [f"{name} has no test that fires it" for name in alerts.keys() - tested]
    for name, rule in alerts.items():
        runbook = rule["annotations"]["runbook"]
        if runbook != f"docs/runbooks/{name}.md" or not (ROOT / runbook).is_file():
            problems.append(f"{name}: there is no {runbook}")
    pages = {page.stem for page in (ROOT / "docs" / "runbooks").glob("Vivavoce*.md")}
    problems += [f"docs/runbooks/{name}.md belongs to no alert" for name in pages - alerts.keys()]
    asked = 0
    for file in sorted((ROOT / "operations" / "grafana" / "dashboards").glob("*.json")):
        dashboard = json.loads(file.read_text())
        for panel in dashboard["panels"]:
            for title, expression in expressions(panel):
                asked += 1
                problems += [f"{file.name}, {title}: {problem}" for problem in problems_of(expression, samples)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(alerts)} alerts and {asked} queries of dashboards over {len(samples)} kinds of samples")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
