"""Prints, of what `cargo test --no-run --message-format=json` built (standard input), the unit tests of one package:
its folder and the program, a line each."""

import json
import os
import sys

package = sys.argv[1]
for line in sys.stdin:
    message = json.loads(line)
    if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
        continue
    # `path+file:///folder#name@version`, or `path+file:///folder/name#version` where the folder has the package's name.
    folder, _, name = message["package_id"].removeprefix("path+file://").partition("#")
    name = name.partition("@")[0] if "@" in name else os.path.basename(folder)
    if name == package:
        print(folder, message["executable"])
