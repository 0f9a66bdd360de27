"""A default install, seen by somebody who has no credentials and is on the same network.

One machine runs `meshnet up MODEL`, another `meshnet join TOKEN`, each in a network namespace of
its own. From a third one every port is knocked at and every route is asked for: in plain text,
over TLS without a certificate, and over TLS with one that the stranger made. On the first machine
itself, the API is asked as a page of another site would make a browser do. Prints what
docs/security.md shows. Ends with 1 if anything but joining answers with more than a refusal.

Needs root and iproute2.

    python -m scripts.scan_netns [MODEL]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshnet.cli.local import find_model
from meshnet.cli.settings import Settings
from scripts.e2e_netns import MESHNET, Host, first_match, ip, require, switch
from scripts.scan_probe import CLOSED, HANDSHAKE, REFUSED, WAYS, Answer

READY_SECONDS: Final = 300.0
API_PORT: Final = 8000
REFUSALS: Final = frozenset({"400", "401", "403", "404", "405", "408", "413", "415"})
"""HTTP's. Only the tracker speaks HTTP to strangers, and 404 and 405 are none of its answers."""
GRPC_REFUSALS: Final = frozenset({"UNAVAILABLE", "UNAUTHENTICATED", "DEADLINE_EXCEEDED"})
OPEN: Final = {
    "GET /authority": "200",
}
"""What the tracker answers strangers by design: the authority's certificate, which is public."""
OPEN_PORT: Final = 7700
FOREIGN = """
import json, sys, urllib.request, urllib.error
told = json.load(sys.stdin)
for headers in told["headers"]:
    for method, path in told["routes"]:
        body = b"{}" if method == "POST" else None
        request = urllib.request.Request(
            "http://127.0.0.1:%d%s" % (told["port"], path), body, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                status, readable = answer.status, answer.headers.get("access-control-allow-origin")
        except urllib.error.HTTPError as error:
            status, readable = error.code, error.headers.get("access-control-allow-origin")
        print(json.dumps([headers, method, path, status, readable]))
"""
"""Asks as a browser would for a page of another site: with a Host of its own, or with an Origin,
and then without a type that a browser asks before it sends."""


@dataclass(frozen=True, slots=True)
class Port:
    """A listening socket of one machine."""

    kind: str
    address: str
    port: int
    process: str


def ports_of(host: Host) -> list[Port]:
    """What `ss` says listens on a machine, with the process that does."""
    found = []
    for line in host.ask("ss", "-ltunpH").splitlines():
        kind, _, _, _, local, *rest = line.split()
        address, _, port = local.rpartition(":")
        pids = re.findall(r"pid=(\d+)", " ".join(rest))
        found.append(Port(kind, address, int(port), _process(pids)))
    return sorted(set(found), key=lambda each: (each.kind, each.port))


def _process(pids: Iterable[str]) -> str:
    """What a socket's processes are, by their command lines."""
    names = set()
    for pid in pids:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        known = {"cli.worker": "worker", "cli.tracker_process": "tracker"}
        named = [name for sign, name in known.items() if sign in line]
        names.add(named[0] if named else "meshnet " + ("up" if " up " in line else "join"))
    return ", ".join(sorted(names))


def is_refused(each: Answer) -> bool:
    """Whether an answer gives a stranger nothing."""
    if each.port == OPEN_PORT and OPEN.get(each.route) == each.answer and "TLS" in each.way:
        return True
    if each.route.startswith("gRPC "):
        return each.answer in GRPC_REFUSALS
    return each.answer in {CLOSED, HANDSHAKE, REFUSED} or each.answer in REFUSALS


def table(ports: dict[str, dict[int, str]], answers: list[Answer]) -> list[str]:
    """Lines of a Markdown table: routes with the same answers on all ways share one."""
    lines = ["| machine, port | process | asked for | " + " | ".join(WAYS) + " |"]
    lines.append("|---|---|---|" + "---|" * len(WAYS))
    for host, processes in ports.items():
        for port, process in processes.items():
            said: dict[str, dict[str, list[str]]] = {}
            for each in answers:
                if (each.host, each.port) == (host, port):
                    way, _, name = each.way.partition(", to ")
                    ways = said.setdefault(each.route, {})
                    ways.setdefault(way, []).append(
                        f"{each.answer} (to {name})" if name else each.answer
                    )
            groups: dict[tuple[str, ...], list[str]] = {}
            for route, ways in said.items():
                key = tuple(", ".join(dict.fromkeys(ways.get(way, ["-"]))) for way in WAYS)
                groups.setdefault(key, []).append(route)
            for key, routes in sorted(groups.items(), key=lambda item: len(item[1])):
                what = ", ".join(f"`{route}`" for route in routes)
                if len(routes) > 6:
                    calls = sum(route.startswith("gRPC ") for route in routes)
                    kinds = ((len(routes) - calls, "route"), (calls, "gRPC call"))
                    what = ", ".join(_counted(count, kind) for count, kind in kinds if count)
                lines.append(f"| {host}:{port} | {process} | {what} | " + " | ".join(key) + " |")
    return lines


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def machine(hosts: list[Host], number: int) -> Host:
    """One with a way out, as machines have."""
    host = hosts[number]
    ip("-n", host.namespace, "route", "add", "default", "dev", "eth0")
    return host


def ready(first: Host) -> dict[str, Any]:
    """The cluster's status, once both machines serve."""
    until = time.monotonic() + READY_SECONDS
    while True:
        status = json.loads(first.ask(MESHNET, "status", "--json"))
        if [it["state"] for it in status["machines"]] == ["ready"] * 2:
            return dict(status)
        require(time.monotonic() < until, f"they don't get ready: {status}")
        time.sleep(2.0)


def foreign(first: Host, routes: list[tuple[str, ...]]) -> list[list[Any]]:
    """What a page of another site gets from the API by way of a browser on this machine."""
    told = {
        "port": API_PORT,
        "headers": [
            {"Host": "evil.example", "Content-Type": "application/json"},
            {"Origin": "http://evil.example", "Content-Type": "text/plain"},
        ],
        "routes": routes,
    }
    command, env = first.command(sys.executable, "-c", FOREIGN)
    ended = subprocess.run(
        command, env=env, input=json.dumps(told), check=True, capture_output=True, text=True
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def probe(stranger: Host, told: dict[str, Any]) -> tuple[dict[str, list[int]], list[Answer]]:
    """What the stranger finds."""
    command, env = stranger.command(sys.executable, "-m", "scripts.scan_probe")
    ended = subprocess.run(
        command, env=env, input=json.dumps(told), check=True, stdout=subprocess.PIPE, text=True
    )
    said = json.loads(ended.stdout)
    return said["open"], [Answer(**each) for each in said["answers"]]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("ss") is None:
        raise SystemExit("this needs root and iproute2 (apt-get install iproute2)")
    asked = argparse.ArgumentParser(description="Knock at a default install from outside.")
    asked.add_argument("model", nargs="?", default="demo")
    model = find_model(asked.parse_args().model, Settings.from_environment()).path
    with tempfile.TemporaryDirectory() as folder, switch(Path(folder)) as hosts:
        first, second, stranger = (machine(hosts, number) for number in range(3))
        process = first.start("up", str(model))
        token = first_match(process, r"mesh1_\S+")
        first_match(process, r"serving at http")
        first_match(second.start("join", token), "joined as")
        status = ready(first)
        scan(first, second, stranger, status, model.name)


def scan(first: Host, second: Host, stranger: Host, status: dict[str, Any], part: str) -> None:
    """Ask, print, and end with 1 if that isn't as it should be."""
    listening = {host.address: ports_of(host) for host in (first, second)}
    told = {
        "hosts": list(listening),
        "node": status["machines"][1]["node_id"],
        "digest": status["models"][0]["digest"],
        "part": part,
    }
    found, answers = probe(stranger, told)
    print("| machine | listens at | process | open to others |\n|---|---|---|---|")
    seen: dict[str, dict[int, str]] = {}
    for host, ports in listening.items():
        for each in ports:
            reached = each.kind == "tcp" and each.port in found[host]
            if reached:
                seen.setdefault(host, {})[each.port] = each.process
            shown = "yes" if reached else "no" if each.kind == "tcp" else "not asked"
            print(f"| {host} | {each.address}:{each.port}/{each.kind} | {each.process} | {shown} |")
    print()
    print("\n".join(table(seen, answers)))
    outside = {host: set(found[host]) - set(seen.get(host, {})) for host in found}
    wrong = [f"{each}" for each in answers if not is_refused(each)]
    wrong += [f"{host}: ports {left} of nobody" for host, left in outside.items() if left]
    routes = [tuple(each.route.split(" ")) for each in answers if not each.route.startswith("gRPC")]
    # Those of several words are exchanges with the tracker.
    asked = foreign(first, sorted({route for route in routes if len(route) == 2}))
    print(f"\nOf pages of other sites, {len(asked)} requests to {API_PORT} on the machine itself:")
    for headers, method, path, code, readable in asked:
        by = "Host" if "Host" in headers else "Origin"
        bad = code < 400 if by == "Host" else (method != "GET" and code < 400)
        if bad or readable is not None:
            wrong.append(f"{by} of another site: {method} {path} -> {code}")
    for by in ("Host", "Origin"):
        codes = sorted({code for headers, _, _, code, _ in asked if by in headers})
        print(f"  with a foreign {by}: {codes}, none readable by the page")
    require(not wrong, "\n".join(wrong))
    print(f"\n{len(answers)} questions without credentials; nothing but joining answers.")


if __name__ == "__main__":
    main()
