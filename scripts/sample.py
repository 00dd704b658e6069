#!/usr/bin/env python3
"""Which tests an ordinary run takes: `sample.py GROUPS [--under PREFIX]… [--not-under PREFIX]… <LIST`.

LIST is what `--list` of a test program prints. GROUPS names tests that show one promise with other clients, on other
paths or to other vendors: a number in a line of its own, then as many names as there are, of which the run takes that
number; `a::b::*` is all of a module. Another choice each day, or that of VIVAVOCE_SEED; with VIVAVOCE_LONG all of them.
Prints the names to run.
"""

import argparse
import os
import random
import sys
import time

DAY = 24 * 60 * 60


def groups(path):
    """Pairs of a number and the names that follow it."""
    found = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if line.isdigit():
                found.append((int(line), []))
            elif line:
                found[-1][1].append(line)
    return found


def named(name, tests):
    """The tests of a line."""
    found = [test for test in tests if test == name or (name.endswith("::*") and test.startswith(name[:-1]))]
    if not found:
        sys.exit(f"no such test: {name}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups")
    parser.add_argument("--under", action="append")
    parser.add_argument("--not-under", action="append", default=[])
    options = parser.parse_args()
    tests = [line.strip().removesuffix(": test") for line in sys.stdin if line.strip().endswith(": test")]
    if not tests:
        sys.exit("no list of tests came in")
    seed = int(os.environ.get("VIVAVOCE_SEED") or time.time() // DAY)
    left = set()
    for number, (count, names) in enumerate(groups(options.groups)):
        if not 0 < count < len(names):
            sys.exit(f"{options.groups}: {count} of {len(names)} is no sample: {names}")
        # A generator for each group, so that a change of one does not change what is taken of the others.
        taken = random.Random(f"{seed} {number}").sample(names, count)
        for name in names:
            found = named(name, tests)
            if name not in taken and "VIVAVOCE_LONG" not in os.environ:
                left.update(found)
    under, not_under = tuple(options.under or [""]), tuple(options.not_under)
    wanted = [name for name in tests if name.startswith(under) and not name.startswith(not_under)]
    taken = [name for name in wanted if name not in left]
    if not taken:
        sys.exit("no test is left")
    if len(taken) < len(wanted):
        print(f"{len(taken)} of {len(wanted)} tests by VIVAVOCE_SEED={seed}", file=sys.stderr)
    print("\n".join(taken))


main()
