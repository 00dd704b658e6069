#!/usr/bin/env python3
"""Checks the settings that packages give the server: packaging/check_settings.py RENDERED_CHART... [-- PROGRAM]

Each variable of the compose files, the image and the rendered charts must be one that docs/configuration.md has; with
PROGRAM, its `check` must find the settings good, and the sample settings file must say what its defaults are.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
KNOWN = set(re.findall(r"^\| `[^`]+`[^|]*\| `([A-Z0-9_]+)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.M))
# What the settings that are secret, or of the place, are for this check.
VALUES = {"AUTH_API_SECRET": "0123456789abcdef0123456789abcdef", "POD_IP": "192.0.2.7", "HOST_IP": "192.0.2.8"}
# Variables of a chart that the server does not read: other variables refer to them.
PLACES = {"POD_IP", "HOST_IP"}


def compose() -> dict[str, dict[str, str]]:
    found = {}
    merged: dict[str, str] = {}
    for name in ("compose.yaml", "compose.full.yaml"):
        text = (ROOT / "packaging" / "compose" / name).read_text()
        text = re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", text)
        text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: VALUES.get(match[1], "0123456789abcdef"), text)
        merged |= {key: str(value) for key, value in yaml.safe_load(text)["services"]["vivavoce"]["environment"].items()}
        found[name] = dict(merged)
    return found


def image() -> dict[str, str]:
    text = (ROOT / "packaging" / "Containerfile").read_text()
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", text, re.M)[1]
    return dict(re.findall(r"(\w+)=(\S+)", block))


def chart(file: str) -> tuple[dict[str, str], str]:
    environment, settings = {}, ""
    for document in filter(None, yaml.safe_load_all(Path(file).read_text())):
        if document["kind"] == "ConfigMap":
            settings = document["data"]["vivavoce.yaml"]
        if document["kind"] == "StatefulSet":
            container = document["spec"]["template"]["spec"]["containers"][0]
            for variable in container["env"]:
                environment[variable["name"]] = variable.get("value", VALUES.get(variable["name"], ""))
            # Without one, no server starts.
            environment["AUTH_API_SECRET"] = VALUES["AUTH_API_SECRET"]
    # As Kubernetes does.
    for name, value in environment.items():
        environment[name] = re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], value)
    return environment, settings


def main() -> int:
    arguments = sys.argv[1:]
    program = ""
    if "--" in arguments:
        at = arguments.index("--")
        arguments, program = arguments[:at], arguments[at + 1]
    places = {"the image": (image(), "")}
    places |= {name: (environment, "") for name, environment in compose().items()}
    places |= {Path(file).name: chart(file) for file in arguments}
    problems = []

    def run(*command: str, environment: dict[str, str], settings: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "vivavoce.yaml"
            file.write_text(settings)
            clean = {"PATH": os.environ["PATH"], **environment}
            return subprocess.run([program, "--config", str(file), *command], env=clean, cwd=folder, capture_output=True, text=True)

    for place, (environment, settings) in places.items():
        problems += [f"{place}: there is no setting {name}" for name in environment.keys() - KNOWN - PLACES]
        if program:
            # Exit status 1 says that this machine has no engines, 2 that the settings are wrong.
            # The place has its own folders, which are not on this machine.
            checked = run("check", "--set", "data_dir=data", environment=environment, settings=settings)
            if checked.returncode not in (0, 1) or "settings: good" not in checked.stdout:
                problems.append(f"{place}: {checked.stderr.strip()}")
    if program:
        sample = (ROOT / "packaging" / "vivavoce.yaml").read_text()
        switched_on = "".join(line[1:] + "\n" for line in sample.splitlines() if re.match(r"#[a-z]", line))
        shown = [run("print-config", environment={}, settings=text) for text in (sample, switched_on)]
        values = [[line.rsplit("  (", 1)[0] for line in output.stdout.splitlines()] for output in shown]
        if values[0] != values[1] or not values[0]:
            problems.append(f"packaging/vivavoce.yaml is not the defaults of {program}: {shown[1].stderr.strip()}")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"settings of {len(places)} places, {'checked by the program' if program else 'their names'}: {json.dumps(list(places))}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
