#!/usr/bin/env python3
"""Lists what is linked into the program: packaging/sbom.py OUTDIR [TARGET]

Writes `sbom.cdx.json` (CycloneDX 1.6) and `third-party.txt` (the licences of all of it, which have to go with every copy of
the program). Both are made from cargo's own view of the dependencies for the features of the packages; crates that only
run while others are built (procedural macros, build scripts) are not linked and not listed. Needs the sources of the
dependencies, which `cargo fetch --locked` gets, and builds nothing.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTICES = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.I)
# Below the folder of a crate, where the sources of a C library lie.
DEPTH = 3
# Crates whose data the program has, while only tests have their code.
CONTAINED = {"earshot"}
# Parts of C libraries' sources that are not built.
NOT_BUILT = {"target", "tests", "test", "benches", "fuzz", "doc", "docs", "examples", "third_party", "dnn", "torch"}


def linked(target: str) -> tuple[dict, list[dict], dict[str, list[str]]]:
    """The program's package, the packages that are linked into it, and what each depends on."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--no-default-features", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    program = next(package for package in metadata["packages"] if package["name"] == "vivavoce" and package["source"] is None)

    def is_macro(package: dict) -> bool:
        return any("proc-macro" in part["kind"] for part in package["targets"])

    graph: dict[str, list[str]] = {}
    waiting = [program["id"]]
    while waiting:
        of = waiting.pop()
        if of in graph:
            continue
        normal = [
            dependency["pkg"]
            for dependency in nodes[of]["deps"]
            if (any(kind["kind"] is None for kind in dependency["dep_kinds"]) and not is_macro(packages[dependency["pkg"]]))
            or packages[dependency["pkg"]]["name"] in CONTAINED
        ]
        graph[of] = sorted(normal)
        waiting += normal
    others = [packages[of] for of in graph if packages[of]["source"] is not None]
    return program, sorted(others, key=lambda package: (package["name"], package["version"])), graph


def reference(package_id: str, of: dict[str, dict]) -> str:
    package = of[package_id]
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(program: dict, others: list[dict], graph: dict[str, list[str]]) -> dict:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}
    known = {package["id"]: package for package in [program, *others]}

    def beyond_our_own(of: str, seen: set[str]) -> set[str]:
        """Our own crates are parts of the program: their dependencies are its."""
        found = set()
        for dependency in graph[of]:
            if dependency in seen:
                continue
            seen.add(dependency)
            found |= {dependency} if dependency in known else beyond_our_own(dependency, seen)
        return found

    components = []
    for package in others:
        component = {
            "type": "library",
            "bom-ref": reference(package["id"], known),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(package["id"], known),
        }
        if package["description"]:
            component["description"] = " ".join(package["description"].split())
        if package["license"]:
            # Older manifests separate alternatives with a slash.
            component["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
        if checksum := checksums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        components.append(component)
    dependencies = [
        {"ref": reference(of, known), "dependsOn": sorted(reference(to, known) for to in beyond_our_own(of, set()))}
        for of in sorted(known, key=lambda of: reference(of, known))
    ]
    content = json.dumps([components, dependencies], sort_keys=True)
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    metadata: dict = {
        "component": {
            "type": "application",
            "bom-ref": reference(program["id"], known),
            "name": program["name"],
            "version": program["version"],
            "purl": reference(program["id"], known),
            "licenses": [{"expression": program["license"]}],
        }
    }
    if when:
        metadata["timestamp"] = datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same for the same content.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": dependencies,
    }


def notices(package: dict) -> list[Path]:
    folder = Path(package["manifest_path"]).parent
    found = []
    for where, folders, files in os.walk(folder):
        depth = len(Path(where).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if depth < DEPTH and name not in NOT_BUILT)
        # Sources are called that, too.
        found += [
            Path(where) / name for name in sorted(files) if NOTICES.match(name) and Path(name).suffix in ("", ".md", ".txt", ".MIT", ".APACHE")
        ] + [Path(where) / name for name in sorted(files) if re.match(r"(?i)licen[cs]e-[\w.-]+$", name) and Path(name).suffix not in ("", ".md", ".txt")]
    return list(dict.fromkeys(found))


def third_party(others: list[dict]) -> tuple[str, list[str]]:
    texts: dict[str, tuple[str, list[str]]] = {}
    without = []
    for package in others:
        name = f"{package['name']} {package['version']}"
        files = notices(package)
        if not files:
            without.append(f"{name} ({package['license']})")
        for file in files:
            text = file.read_text(errors="replace").strip()
            key = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            of = texts.setdefault(key, (text, []))[1]
            if name not in of:
                of.append(name)
    out = ["Vivavoce is linked to these libraries. Each licence stands below the libraries that it belongs to.\n"]
    if without:
        out.append("Without a licence file of their own; the terms that their manifests name apply:\n\n" + "\n".join(f"  {name}" for name in without) + "\n")
    for text, of in sorted(texts.values(), key=lambda entry: entry[1][0]):
        out.append("=" * 100 + "\n" + "\n".join(of) + "\n" + "-" * 100 + "\n" + text + "\n")
    return "\n".join(out), without


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print("usage: packaging/sbom.py OUTDIR [TARGET]", file=sys.stderr)
        return 2
    outdir = Path(sys.argv[1])
    outdir.mkdir(parents=True, exist_ok=True)
    target = sys.argv[2] if len(sys.argv) == 3 else f"{os.uname().machine}-unknown-linux-gnu"
    program, others, graph = linked(target)
    document = bill(program, others, graph)
    (outdir / "sbom.cdx.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    texts, without = third_party(others)
    (outdir / "third-party.txt").write_text(texts)
    print(f"{len(others)} libraries for {target}; {len(without)} without a licence file of their own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
