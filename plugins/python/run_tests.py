"""Runs the tests of one of these distributions against a server: `python run_tests.py DISTRIBUTION [-v] [-k PATTERN] ...`.

`VIVAVOCE_URL` names the server, `VIVAVOCE_API_KEY` is its token where it wants one; the python is that of an environment with the
distribution's `dev` extra. What is installed is tested, not what lies beside this file.
"""

import os
import sys
import unittest
from pathlib import Path

if not os.environ.get("VIVAVOCE_URL"):
    # Skipped tests would promise nothing.
    sys.exit("VIVAVOCE_URL has to name a running server")
here = Path(__file__).parent
sys.path[:0] = [str(here / "testing")]
distribution = here / sys.argv[1]
unittest.main(module=None, argv=[sys.argv[0], "discover", "-s", str(distribution / "tests"), *sys.argv[2:]])
