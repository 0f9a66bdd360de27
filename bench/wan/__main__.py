"""Does the router do what it says?

    python -m bench.wan

For each link: the smallest and the median round trip of 50 bytes over TCP, which should be twice
the delay, and the rate of a long transfer, which should be the link's.
"""

from __future__ import annotations

import argparse

from bench.setup import median, table
from bench.wan.network import Link, network
from bench.wan.probe import rate_mbit, round_trips_ms

LINKS = (
    *(Link(delay) for delay in (0.0, 0.2, 1.0, 5.0, 20.0, 50.0)),
    *(Link(delay, mbit) for delay in (1.0, 20.0) for mbit in (100.0, 1000.0)),
)
SECONDS = 1.0


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows: list[tuple[object, ...]] = []
    with network(2) as net:
        for link in LINKS:
            net.set(link)
            times = round_trips_ms(net)
            rate = f"{rate_mbit(net, link.mbit / 8 * SECONDS):.0f}" if link.mbit else "-"
            dropped = net.set(link).dropped
            rows.append((str(link), f"{min(times):.2f}", f"{median(times):.2f}", rate, dropped))
    print(table(("link", "round trip, least ms", "median ms", "Mbit/s", "dropped"), rows))


if __name__ == "__main__":
    main()
