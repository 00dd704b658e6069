#!/usr/bin/env python3
"""Writes the Grafana dashboard: operations/grafana/dashboard.py > operations/grafana/dashboards/vivavoce.json

The panels are declared below, a line of the dashboard after the other; packaging/check.sh compares the committed file with
what this prints, and operations/check_metrics.py each query with the metrics that the server has.
"""

import json

HERE = '{job="$job", instance=~"$instance"}'


def here(more: str = "") -> str:
    return HERE[:-1] + (", " + more if more else "") + "}"


def rate(counter: str, by: str = "instance", more: str = "") -> str:
    return f"sum by ({by}) (rate(vivavoce_{counter}_total{here(more)}[$__rate_interval]))"


def quantile(q: float, histogram: str, by: str = "instance", more: str = "") -> str:
    buckets = f"rate(vivavoce_{histogram}_seconds_bucket{here(more)}[$__rate_interval])"
    return f"histogram_quantile({q}, sum by ({by}, le) ({buckets}))"


def quantiles(histogram: str, by: str = "instance", more: str = "") -> list[tuple[str, str]]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return [(quantile(q, histogram, by, more), f"{legend} p{int(q * 100)}") for q in (0.5, 0.95, 0.99)]


# A row: its title and its panels. A panel: title, unit, what it tells, queries with their legends.
ROWS = [
    (
        "Now",
        [
            ("Sessions", "short", "Live sessions", [(f"vivavoce_sessions{HERE}", "{{instance}}")]),
            ("Calls", "short", "Live telephone calls", [(f"sum by (instance, direction) (vivavoce_calls{HERE})", "{{instance}} {{direction}}")]),
            (
                "Rooms and participants",
                "short",
                "Of embedded rooms",
                [(f"vivavoce_rooms{HERE}", "{{instance}} rooms"), (f"vivavoce_room_participants{HERE}", "{{instance}} participants")],
            ),
            (
                "Agents",
                "short",
                "Connected workers and jobs that have not ended",
                [(f"vivavoce_agent_workers{HERE}", "{{instance}} workers"), (f"vivavoce_agent_jobs{HERE}", "{{instance}} jobs")],
            ),
        ],
    ),
    (
        "Conversation",
        [
            ("Answer to a turn", "s", "From the end of speech to the first sound of the answer", quantiles("turn_first_sound")),
            ("Turns", "ops", "By what ended them", [(rate("turns", "reason"), "{{reason}}")]),
            (
                "Barge-in",
                "ops",
                "Utterances that were cut off, and what only said that somebody listens",
                [(rate("interruptions"), "{{instance}} interruptions"), (rate("backchannels"), "{{instance}} backchannels")],
            ),
            ("End-of-turn model", "ops", "Its answers; late ones are decided by silence", [(rate("turn_answers", "answer"), "{{answer}}")]),
        ],
    ),
    (
        "Providers",
        [
            ("First sound", "s", "From a text to its first sound", quantiles("provider_first_byte", "provider", 'task="tts"')),
            ("Final transcript", "s", "From the end of an utterance to its final", quantiles("provider_final", "provider", 'task="stt"')),
            ("Failures", "ops", "By kind", [(rate("provider_errors", "provider, kind"), "{{provider}} {{kind}}")]),
            (
                "Work at this machine",
                "short",
                "Syntheses that wait for a place, local recognisers at work, broken streams of recognisers",
                [
                    (f"vivavoce_syntheses_waiting{HERE}", "{{instance}} waiting"),
                    (f"vivavoce_recognisers_busy{HERE}", "{{instance}} recognisers"),
                    (rate("stt_restarts"), "{{instance}} restarts/s"),
                ],
            ),
            (
                "Cache",
                "percentunit",
                "Share of syntheses that were in the cache",
                [
                    (
                        f"{rate('cache_hits')} / ({rate('cache_hits')} + {rate('cache_misses')})",
                        "{{instance}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Sound in time",
        [
            ("Delay of input", "s", "From a frame's arrival to the recogniser", quantiles("input_delay")),
            ("Delay of output", "s", "From a chunk being due to the socket's queue", quantiles("output_delay")),
            ("Sound thrown away", "s", "Seconds a second, by cause", [(rate("audio_dropped_seconds", "cause"), "{{cause}}")]),
            (
                "Slow clients",
                "ops",
                "Sockets closed because nobody read, events replaced by later ones, messages that took too long",
                [
                    (rate("sockets_fell_behind"), "{{instance}} sockets"),
                    (rate("events_coalesced"), "{{instance}} events"),
                    (rate("messages_cut_off"), "{{instance}} messages"),
                ],
            ),
        ],
    ),
    (
        "Telephone",
        [
            ("Calls that ended", "ops", "By cause", [(rate("calls_ended", "direction, cause"), "{{direction}} {{cause}}")]),
            ("Time to answer", "s", "From a call's beginning to its answer", quantiles("call_setup", "direction")),
            (
                "Packets lost",
                "percentunit",
                "Of calls that are over",
                [
                    (
                        f"{rate('call_packets_lost')} / ({rate('call_packets_lost')} + {rate('call_packets_received')})",
                        "{{instance}}",
                    )
                ],
            ),
            ("Signalling refused", "ops", "By cause", [(rate("sip_refused", "cause"), "{{cause}}")]),
            (
                "Registrations",
                "short",
                "Accounts at PBXs and carriers, and how many of them are registered",
                [
                    (f"vivavoce_sip_registration_accounts{HERE}", "{{instance}} accounts"),
                    (f"vivavoce_sip_registrations{HERE}", "{{instance}} registered"),
                ],
            ),
        ],
    ),
    (
        "Recordings and webhooks",
        [
            ("Recordings that wait", "short", "For the store", [(f"vivavoce_recordings_waiting{HERE}", "{{instance}}")]),
            ("The oldest of them", "s", "", [(f"vivavoce_recordings_waiting_oldest_seconds{HERE}", "{{instance}}")]),
            (
                "Uploads",
                "ops",
                "",
                [
                    (rate("recordings_stored"), "{{instance}} stored"),
                    (rate("recording_upload_failures"), "{{instance}} failed"),
                    (rate("recordings_late"), "{{instance}} behind on the disk"),
                ],
            ),
            (
                "Webhooks",
                "ops",
                "",
                [
                    (rate("webhooks_delivered"), "{{instance}} delivered"),
                    (rate("webhook_failures"), "{{instance}} failed attempts"),
                    (rate("webhooks_lost", "cause"), "lost: {{cause}}"),
                ],
            ),
        ],
    ),
    (
        "Server",
        [
            ("Requests", "ops", "By status", [(rate("http_requests", "status"), "{{status}}")]),
            ("Duration of requests", "s", "p95 by route", [(quantile(0.95, "http_request_duration", "route"), "{{route}}")]),
            (
                "Refusals",
                "ops",
                "By the limit or the quota that was reached",
                [(rate("limits_reached", "limit"), "{{limit}}"), (rate("quota_refusals", "quota"), "quota: {{quota}}")],
            ),
            ("Processor", "short", "Cores", [(f"rate(process_cpu_seconds_total{HERE}[$__rate_interval])", "{{instance}}")]),
            ("Memory", "bytes", "Resident, without the workers of local speech", [(f"process_resident_memory_bytes{HERE}", "{{instance}}")]),
            (
                "File descriptors",
                "percentunit",
                "Of what is allowed",
                [(f"process_open_fds{HERE} / process_max_fds{HERE}", "{{instance}}")],
            ),
            ("Version", "short", "", [(f"sum by (version) (vivavoce_build_info{HERE})", "{{version}}")]),
            ("Age", "s", "Time since the process began", [(f"time() - process_start_time_seconds{HERE}", "{{instance}}")]),
        ],
    ),
]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panels():
    number, y = 0, 0
    for title, row in ROWS:
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []}
        y += 1
        for index, (name, unit, tells, queries) in enumerate(row):
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": name,
                "description": tells,
                "datasource": DATASOURCE,
                "gridPos": {"h": 8, "w": 6, "x": index % 4 * 6, "y": y + index // 4 * 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": [
                    {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
                    for at, (expression, legend) in enumerate(queries)
                ],
            }
        y += (len(row) + 3) // 4 * 8


def variable(name: str, label: str, of: str, many: bool) -> dict:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": of, "refId": name},
        "definition": of,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "current": {"text": "All", "value": "$__all"} if many else {"text": "vivavoce", "value": "vivavoce"},
    }


DASHBOARD = {
    "uid": "vivavoce",
    "title": "Vivavoce",
    "tags": ["vivavoce"],
    "schemaVersion": 39,
    "editable": True,
    "refresh": "30s",
    "time": {"from": "now-3h", "to": "now"},
    "templating": {
        "list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "Job", "label_values(vivavoce_build_info, job)", False),
            variable("instance", "Server", 'label_values(vivavoce_build_info{job="$job"}, instance)', True),
        ]
    },
    "annotations": {
        "list": [
            {
                "name": "Starts",
                "enable": True,
                "iconColor": "blue",
                "datasource": DATASOURCE,
                "expr": f"changes(process_start_time_seconds{HERE}[1m]) > 0",
                "titleFormat": "{{instance}} has started",
            }
        ]
    },
    "panels": list(panels()),
}

print(json.dumps(DASHBOARD, indent=1, ensure_ascii=False))
