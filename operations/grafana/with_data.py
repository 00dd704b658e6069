#!/usr/bin/env python3
"""Loads the dashboard with data: runs a server under load and a Prometheus that scrapes it, and asks it every panel's queries.

    operations/grafana/with_data.py PROGRAM [--seconds 20]

PROGRAM is a built vivavoce with `bench`. Needs `prometheus` and `sipp` on the PATH, and a local voice. Everything listens on
loopback, at free ports, and ends with this. Prints a line for each panel; a panel without data fails, unless it is of what
this load has none of.
"""

import argparse
import contextlib
import http.server
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
# What nothing goes wrong with here, or nobody brings.
WITHOUT = {
    "Failures": "no provider fails",
    "Sound thrown away": "no sound is late",
    "Refusals": "no limit is reached",
    "Signalling refused": "nobody calls who may not",
    # With the models of ./test, both have data.
    "End-of-turn model": "smart-turn is not installed everywhere",
    "Final transcript": "that model asks for it",
}


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(url, body=None, patience=20):
    request = urllib.request.Request(url, body, {"content-type": "application/json"} if body else {})
    with urllib.request.urlopen(request, timeout=patience) as answer:
        return answer.read()


def until(what, url):
    for _ in range(200):
        with contextlib.suppress(OSError):
            get(url)
            return
        time.sleep(0.1)
    sys.exit(f"{what} does not answer at {url}")


class Webhooks(http.server.BaseHTTPRequestHandler):
    """Takes every second webhook."""

    seen = 0

    def do_POST(self):
        Webhooks.seen += 1
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(204 if Webhooks.seen % 2 else 500)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def running(command, folder, log, **more):
    with open(folder / log, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, **more)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def load(program, port, sip, folder, seconds):
    """What people do with a server, for a while."""
    url = f"http://127.0.0.1:{port}"
    bench = [program, "bench", "sessions", "--url", f"ws://127.0.0.1:{port}", "--sessions", "6", "--record"]
    with running([*bench, "--seconds", str(seconds)], folder, "bench.log") as measuring:
        calls = ["sipp", "-sn", "uac", "-s", "100", f"127.0.0.1:{sip}", "-i", "127.0.0.1", "-m", "4", "-r", "1", "-d", "3000"]
        # A telephone that sends back what it hears.
        phone = free_port(socket.SOCK_DGRAM)
        called = ["sipp", "-sn", "uas", "-i", "127.0.0.1", "-p", str(phone), "-rtp_echo", "-nostdin"]
        calling = running([*calls, "-nostdin", "-timeout", "30s"], folder, "sipp.log")
        with calling, running(called, folder, "phone.log"):
            call = {
                "participant_name": "Phone",
                "from_phone_number": "+14155550100",
                "to_phone_number": "+14155550123",
                "sip": {"outbound_address": f"127.0.0.1:{phone}"},
            }
            for number in itertools.count():
                if measuring.poll() is not None:
                    break
                # A rate needs some of each, and what is counted at the end of a call its end.
                if number % 3 == 1:
                    who = {"room_name": f"line-{number}", "participant_identity": "phone"}
                    get(f"{url}/sip/call", json.dumps(call | who).encode())
                for text in ("Good morning.", "Good morning.", "How are you?"):
                    wish = {"text": text, "tts_config": {"provider": "local", "model": "", "audio_format": "wav"}}
                    get(f"{url}/speak", json.dumps(wish).encode())
                get(f"{url}/rtc/token", b'{"room_name": "r", "participant_identity": "p", "participant_name": "p"}')
                with contextlib.suppress(urllib.error.HTTPError):
                    get(f"{url}/recording/nobody")
                time.sleep(1)
        if measuring.returncode:
            sys.exit((folder / "bench.log").read_text())


def plain(query):
    query = query.replace("$__rate_interval", "15s").replace("$job", "vivavoce")
    return query.replace("$instance", ".*")


def ask(prometheus, query, start, end):
    """How many series a query has, and how many numbers are in them."""
    asked = urllib.parse.urlencode({"query": plain(query), "start": start, "end": end, "step": 2})
    try:
        answer = json.loads(get(f"{prometheus}/api/v1/query_range?{asked}"))
    except urllib.error.HTTPError as error:
        sys.exit(f"{query}: {error.read().decode()}")
    series = answer["data"]["result"]
    numbers = sum(math.isfinite(float(value)) for one in series for _, value in one["values"])
    return len(series), numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    for tool in ("prometheus", "sipp"):
        if not shutil.which(tool):
            sys.exit(f"operations/grafana/with_data.py: {tool} is not installed")
    program = arguments.program.resolve()
    dashboard = json.loads((HERE / "dashboards/vivavoce.json").read_text())
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhooks)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        port, sip, scraper = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
        settings = {
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "DATA_DIR": str(folder / "data"),
            "NULL_ENABLED": "true",
            "RTC_UDP_PORT": "0",
            "SIP_LISTEN": f"udp:127.0.0.1:{sip}",
            "SIP_ALLOWED_ADDRESSES": "127.0.0.1",
            "SIP_ROOM_PREFIX": "call-",
            "SIP_ALLOW_PRIVATE_OUTBOUND": "true",
            "SIP_MAX_CALL_SECONDS": "4",
            "WEBHOOKS_URL": f"http://127.0.0.1:{receiver.server_port}/",
            "WEBHOOKS_SECRET": "a secret of this test, long enough",
            "WEBHOOKS_ALLOW_INSECURE": "true",
            "WEBHOOKS_ALLOW_PRIVATE": "true",
        }
        config = (HERE.parent / "prometheus/prometheus.yml").read_text()
        config = config.replace("vivavoce:9091", f"127.0.0.1:{port}").replace("15s", "1s")
        config = re.sub(r"- alerts.yml", f"- {HERE.parent}/prometheus/alerts.yml", config)
        (folder / "prometheus.yml").write_text(config)
        server = running([program, "serve"], folder, "server.log", env=os.environ | settings)
        storage = ["--storage.tsdb.path", "metrics", "--config.file", "prometheus.yml"]
        scraping = running(["prometheus", *storage, "--web.listen-address", f"127.0.0.1:{scraper}"], folder, "prometheus.log")
        with server, scraping:
            until("the server", f"http://127.0.0.1:{port}/readyz")
            prometheus = f"http://127.0.0.1:{scraper}"
            until("Prometheus", f"{prometheus}/-/ready")
            start = time.time()
            load(program, port, sip, folder, arguments.seconds)
            # What the last scrapes found.
            time.sleep(5)
            end = time.time()
            empty = []
            for panel in dashboard["panels"]:
                queries = [target["expr"] for target in panel.get("targets", [])]
                if not queries:
                    continue
                found = [ask(prometheus, query, start, end) for query in queries]
                title = panel["title"]
                print(f"{title:28} {sum(n for n, _ in found):4} series {sum(n for _, n in found):6} numbers", flush=True)
                if not any(numbers for _, numbers in found) and title not in WITHOUT:
                    empty.append(title)
            if empty:
                sys.exit(f"panels without data: {', '.join(empty)}")
    print("every panel has data, but for: " + "; ".join(f"{title} ({why})" for title, why in WITHOUT.items()))


if __name__ == "__main__":
    main()
