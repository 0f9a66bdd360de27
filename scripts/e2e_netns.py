"""Four machines on one switch, each in a network namespace of its own: join, serve, die, replace.

Needs root and iproute2. Prints what each machine fetched beside what its layers weigh, and how long
the API was without an answer after one machine was cut off. Ends with 1 if anything isn't as it
should be.

    python scripts/e2e_netns.py [--relayed] [MODEL]

With --relayed, the second machine is at an address to which the others have no way, so it serves
over the relay; then they get a way, and the relay is given up.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshnet.cli.local import find_model
from meshnet.cli.settings import Settings
from meshnet.domain.errors import ResourceExhaustedError
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.linkbook import MOST_BYTES
from meshnet.tracker.placement import Demand, Machine, ModelShape, uniform_links
from meshnet.tracker.search import place

MESHNET = str(Path(sys.executable).with_name("meshnet"))
MACHINES = 5
SERVING = 3
"""Machines that it takes to hold the model."""
TRACKER_PORT, API_PORT = 7700, 8000
DEMAND = Demand(context_tokens=2048, sessions=2)
QUESTION = "Name three rivers."
TOKENS = 24
ANSWER_SECONDS = 180.0
FOUND_SECONDS = 45.0
FETCHED_AT_MOST = 1.02
"""Bytes that came, by those of the layers' tensors."""
OTHER_BYTES = 4 << 20
"""Headers, vocabulary, manifest, heartbeats and tokens, which don't grow with the layers."""
LINK_BYTES = MACHINES * MOST_BYTES
"""What comes while the rates of a machine's links are measured, if that falls in the same time."""
ASK = """
import json, sys, urllib.request
request = urllib.request.Request(
    "http://127.0.0.1:%d/v1/completions" % int(sys.argv[1]),
    json.dumps({"model": sys.argv[2], "prompt": sys.argv[3], "max_tokens": int(sys.argv[4]),
                "temperature": 0}).encode(),
    {"content-type": "application/json"},
)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps({"status": 200, "text": json.load(answer)["choices"][0]["text"]}))
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, "text": json.load(error)["error"]["message"]}))
"""


@dataclass
class Host:
    """One machine: a namespace, its link to the switch, and folders of its own."""

    number: int
    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return f"mn{os.getpid()}-{self.number}"

    @property
    def link(self) -> str:
        """The switch's end of the machine's cable."""
        return f"mn{os.getpid() % 100_000}v{self.number}"

    @property
    def address(self) -> str:
        return f"10.78.0.{self.number}"

    @property
    def hidden_address(self) -> str:
        """One that the others find only once :meth:`find` was called."""
        return f"10.79.0.{self.number}"

    def find(self, other: Host) -> None:
        """Get a way to another machine's hidden address."""
        inside = ("via", other.address)
        ip("-n", self.namespace, "route", "replace", f"{other.hidden_address}/32", *inside)

    @property
    def name(self) -> str:
        return f"machine{self.number}"

    @property
    def received(self) -> int:
        """Bytes that the switch sent to the machine."""
        return int(Path(f"/sys/class/net/{self.link}/statistics/tx_bytes").read_text())

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        folder = self.root / self.name
        folder.mkdir(exist_ok=True)
        own = {"MESHNET_STATE": str(folder / "state"), "MESHNET_CACHE": str(folder / "cache")}
        return ["ip", "netns", "exec", self.namespace, *arguments], {**os.environ, **own}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command, env = self.command(MESHNET, *arguments)
        log = (self.root / f"{self.name}.log").open("w")
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        self.started.append(process)
        return process

    def ask(self, *arguments: str) -> str:
        command, env = self.command(*arguments)
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def cut_off(self) -> None:
        """As when the power goes: nothing comes any more, not even the end of a connection."""
        ip("link", "set", self.link, "down")
        found = subprocess.run(
            ["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True
        )
        for pid in map(int, found.stdout.split()):
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def switch(root: Path) -> Iterator[list[Host]]:
    """The machines, connected; gone at the end with all that runs on them."""
    bridge = f"mn{os.getpid() % 100_000}br"
    hosts = [Host(number, root) for number in range(1, MACHINES + 1)]
    with ExitStack() as stack:
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("link", "set", bridge, "up")
        for host in hosts:
            ip("netns", "add", host.namespace)
            stack.callback(ip, "netns", "del", host.namespace)
            inside = ("type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            ip("link", "add", host.link, *inside)
            # A namespace lives on for a while if a connection of it was cut off.
            stack.callback(ip, "link", "del", host.link)
            ip("link", "set", host.link, "master", bridge, "up")
            ip("-n", host.namespace, "link", "set", "lo", "up")
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
            ip("-n", host.namespace, "addr", "add", f"{host.hidden_address}/32", "dev", "lo")
            stack.callback(host.end)
        yield hosts


def memory_for(shape: ModelShape) -> int:
    """Of which so much is needed that it takes :data:`SERVING` machines to hold the model."""

    def fits(memory: int, machines: int) -> bool:
        try:
            place(shape, [Machine("", memory, 1e10)] * machines, links(machines), DEMAND)
        except ResourceExhaustedError:
            return False
        return True

    def links(machines: int):  # type: ignore[no-untyped-def]
        return uniform_links(machines, 0.0003)

    low, high = 0, 1 << 44
    while high - low > 1 << 20:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle, SERVING) else (middle, high)
    if fits(high, SERVING - 1):
        raise SystemExit("the model is too small to need several machines")
    return high


def first_match(process: subprocess.Popen[str], pattern: str) -> str:
    """What matches in the first line of the output that has it."""
    for line in process.stdout or ():
        found = re.search(pattern, line)
        if found:
            return found[0]
    raise SystemExit(f"a machine ended without saying {pattern}; its log says why")


class Cluster:
    """The machines, and what the first one answers."""

    def __init__(self, hosts: list[Host], model: Path, memory: int) -> None:
        self.hosts = hosts
        self.model = model
        self.memory = memory
        self.join = ""

    def up(self) -> None:
        first = self.hosts[0]
        serving = ("--ctx", str(DEMAND.context_tokens), "--sessions", str(DEMAND.sessions))
        listen = ("--listen", f"{first.address}:{TRACKER_PORT}", "--port", str(API_PORT))
        lent = ("--memory", str(self.memory), "--threads", "1", "--name", first.name)
        process = first.start("up", str(self.model), *listen, *serving, *lent)
        self.join = first_match(process, r"mesh1_\S+")
        first_match(process, r"serving at http")

    def add(self, host: Host, *, hidden: bool = False) -> None:
        lent = ("--memory", str(self.memory), "--threads", "1", "--name", host.name)
        at = ("--host", host.hidden_address) if hidden else ()
        first_match(host.start("join", self.join, *lent, *at), "joined as")

    def ask(self) -> tuple[int, str]:
        arguments = (str(API_PORT), self.model.stem, QUESTION, str(TOKENS))
        answer = json.loads(self.hosts[0].ask(sys.executable, "-c", ASK, *arguments))
        return answer["status"], answer["text"]

    def answer(self) -> tuple[str, float]:
        """The answer, and after how many seconds it was there."""
        began = time.monotonic()
        while (answer := self.ask())[0] != 200:
            if time.monotonic() - began > ANSWER_SECONDS:
                raise SystemExit(f"no answer within {ANSWER_SECONDS:g} s: {answer[1]}")
            time.sleep(0.5)
        return answer[1], time.monotonic() - began

    def machines(self) -> dict[str, Any]:
        status = json.loads(self.hosts[0].ask(MESHNET, "status", "--json"))
        return {it["name"]: it for it in status["machines"]}

    def ways(self) -> dict[str, str]:
        """How each machine is reached that serves."""
        return {name: it["way"] for name, it in self.machines().items() if it["way"] is not None}

    def layers(self, host: Host) -> tuple[int, int]:
        told = self.machines()[host.name]["told"]
        return told["start"], told["end"]


def require(right: bool, what: str) -> None:  # noqa: FBT001 - it reads well
    if not right:
        raise SystemExit(f"wrong: {what}")


def layer_bytes(shape: ModelShape, start: int, end: int) -> int:
    """Of the tensors that a range needs."""
    size = sum(shape.layer_bytes[start:end]) + shape.shared_bytes
    size += shape.embedding_bytes if start == 0 else 0
    return size + (shape.output_bytes if end == len(shape.layer_bytes) else 0)


def main() -> None:
    # So that the namespaces are taken down then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit("this needs root and iproute2 (apt-get install iproute2)")
    asked = argparse.ArgumentParser(description="Try machines in namespaces of their own.")
    asked.add_argument("model", nargs="?", default="demo")
    asked.add_argument("--relayed", action="store_true", help="one behind the relay")
    arguments = asked.parse_args()
    model = find_model(arguments.model, Settings.from_environment()).path
    shape = shape_of(describe(read_index(model)))
    options = ("--nodes", "1", "--raw", "--temperature", "0", "--max-tokens", str(TOKENS))
    alone = subprocess.run(
        [MESHNET, "run", str(model), QUESTION, *options, "--ctx", "2048", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    expected = json.loads(alone.stdout)["text"]
    with tempfile.TemporaryDirectory() as folder, switch(Path(folder)) as hosts:
        cluster = Cluster(hosts, model, memory_for(shape))
        cluster.up()
        status, refusal = cluster.ask()
        require(status == 503 and "layers" in refusal, f"{status} {refusal}")
        before = {host.name: host.received for host in hosts}
        for host in hosts[1:SERVING]:
            cluster.add(host, hidden=arguments.relayed and host is hosts[1])
        text, seconds = cluster.answer()
        require(text == expected, f"{text!r} isn't {expected!r}")
        print(f"answered as on one machine, {seconds:.1f} s after {SERVING} machines were there")
        report_fetched(cluster, shape, hosts[1:SERVING], before)
        if arguments.relayed:
            give_up_relay(cluster, hosts[1], expected)

        victim, heir = hosts[1], hosts[SERVING]
        lost = cluster.layers(victim)
        victim.cut_off()
        cut = time.monotonic()
        while (said := cluster.ask())[0] != 503:
            time.sleep(0.2)
        known = time.monotonic() - cut
        require(f"[{lost[0]}, {lost[1]})" in said[1], said[1])
        print(f"{victim.name} cut off; the API says after {known:.1f} s: {said[1]}")
        before = {heir.name: heir.received}
        cluster.add(heir)
        text, seconds = cluster.answer()
        require(text == expected, f"{text!r} isn't {expected!r}")
        require(cluster.layers(heir) == lost, f"{heir.name} has {cluster.layers(heir)}")
        print(f"{heir.name} joined and took {lost}; answered {seconds:.1f} s later")
        report_fetched(cluster, shape, [heir], before)
        hand_over(cluster, shape, hosts[SERVING - 1], hosts[SERVING + 1])
        text, _ = cluster.answer()
        require(text == expected, f"{text!r} isn't {expected!r}")


def hand_over(cluster: Cluster, shape: ModelShape, giver: Host, taker: Host) -> None:
    """A machine that is to end gives its layers to the next one, and the first gives none."""
    layers = cluster.layers(giver)
    cluster.hosts[0].ask(MESHNET, "drain", giver.name)
    before, began = {taker.name: taker.received}, time.monotonic()
    cluster.add(taker)
    while (found := cluster.machines()[taker.name])["state"] != "ready":
        require(time.monotonic() - began < ANSWER_SECONDS, f"{taker.name} is {found['state']}")
        time.sleep(0.5)
    require(cluster.layers(taker) == layers, f"{taker.name} has {cluster.layers(taker)}")
    print(f"{taker.name} took {layers} from {giver.name} in {time.monotonic() - began:.1f} s")
    report_fetched(cluster, shape, [taker], before)
    came = found["weights"]
    require(came["peer_bytes"] >= layer_bytes(shape, *layers), f"came: {came}")
    require(came["first_bytes"] <= OTHER_BYTES, f"came: {came}")


def give_up_relay(cluster: Cluster, hidden: Host, expected: str) -> None:
    """What was answered came over the relay, and nothing does once there is another way."""
    ways = cluster.ways()
    others = {way for name, way in ways.items() if name != hidden.name}
    require((ways[hidden.name], others) == ("relayed", {"direct"}), f"ways: {ways}")
    began, count = time.monotonic(), 8
    for _ in range(count):
        cluster.ask()
    over = (time.monotonic() - began) / count
    print(f"{hidden.name} serves over the relay: {over:.2f} s an answer")
    for host in cluster.hosts:
        if host is not hidden:
            host.find(hidden)
    began = time.monotonic()
    while cluster.ways()[hidden.name] != "direct":
        require(time.monotonic() - began < FOUND_SECONDS, f"ways: {cluster.ways()}")
        time.sleep(0.5)
    print(f"the others found a way; the relay was given up after {time.monotonic() - began:.1f} s")
    text, _ = cluster.answer()
    require(text == expected, f"{text!r} isn't {expected!r}")


def report_fetched(
    cluster: Cluster, shape: ModelShape, hosts: list[Host], before: dict[str, int]
) -> None:
    for host in hosts:
        start, end = cluster.layers(host)
        came, own = host.received - before[host.name], layer_bytes(shape, start, end)
        share = came / sum(shape.layer_bytes)
        print(f"{host.name}: layers {start}:{end}, {came:,} bytes came, {own:,} are theirs")
        by = cluster.machines()[host.name]["weights"]
        print(f"  {by['first_bytes']:,} of the first machine, {by['peer_bytes']:,} of others")
        most = FETCHED_AT_MOST * own + OTHER_BYTES
        require(by["first_bytes"] + by["peer_bytes"] <= most, f"weights: {by}")
        require(came <= most + LINK_BYTES, f"that is {share:.0%} of the model")


if __name__ == "__main__":
    main()
