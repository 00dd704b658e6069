"""Reads a page of metrics as a collector does, with Prometheus' own parser of OpenMetrics, which refuses what the format does
not allow. Prints the families as JSON.

`read_metrics.py URL`
"""

import json
import sys
import urllib.request

from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families

request = urllib.request.Request(sys.argv[1], headers={"Accept": CONTENT_TYPE_LATEST})
with urllib.request.urlopen(request, timeout=10) as answer:
    media_type = answer.headers["Content-Type"]
    page = answer.read().decode("utf-8")
families = [
    {
        "name": family.name,
        "type": family.type,
        "unit": family.unit,
        "help": family.documentation,
        "samples": [
            {"name": sample.name, "labels": sample.labels, "value": float(sample.value)}
            for sample in family.samples
        ],
    }
    for family in text_string_to_metric_families(page)
]
json.dump({"media_type": media_type, "families": families}, sys.stdout)
