"""`python -m bench [--quick]`: run the workloads, print figure, reference and ratio, and keep them in bench/results."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from pathlib import Path

from bench.drafts import draft_figures
from bench.faults import fault_figures
from bench.flood import flooded
from bench.ground import durable_server
from bench.idle import idle
from bench.log import appended
from bench.messages import latencies, path_commits, saturated
from bench.sends import send_figures
from bench.turns import recoveries, round_trip, step_cost, turns_per_second

RESULTS = Path(__file__).parent / "results"


async def run(quick: bool) -> dict[str, float]:
    """All workloads; `quick` takes a fraction of the work, to see that they run."""
    count, rounds, seconds = (400, 5, 3.0) if quick else (5_000, 60, 15.0)
    figures: dict[str, float] = {}
    async with durable_server() as server:
        one = await saturated(server, 1, count)
        three = await saturated(server, 3, count)
        taken = await latencies(server, count // 10, 10.0)
        commits = await path_commits(server, count // 10)
        fenced, bare = await appended(server, rounds)
        under, alone = await flooded(server, count // 20)
        rates = {n: await turns_per_second(server, n, count // 2 if n > 1 else count // 10) for n in (1, 64, 500)}
        step = await step_cost(server, count // 10)
        trip = await round_trip(server, count // 10)
        recovered = await recoveries(server, 3 if quick else 20)
        delivery = await send_figures(server, quick)
        delivery |= await draft_figures(server, quick)
        delivery |= await fault_figures(server, quick)
        rest = await idle(server, seconds)
    figures["messages per second, 1 replica"] = one.rate
    figures["messages per second, 3 replicas with a role each"] = three.rate
    figures["ratio 3 replicas : 1"] = three.rate / one.rate
    figures["transactions per message, 1 replica"] = one.transactions
    figures["transactions per message, 3 replicas"] = three.transactions
    figures["event to send, ms p50"] = taken[len(taken) // 2]
    figures["event to send, ms p99"] = taken[int(len(taken) * 0.99)]
    figures["reference: the path's commits alone, ms p50"] = commits
    figures["ratio p50 : reference"] = taken[len(taken) // 2] / commits
    figures["events appended per second, 500 fenced sessions"] = fenced
    figures["reference: plain multi-row inserts, rows per second"] = bare
    figures["ratio append : plain insert"] = fenced / bare
    figures["claim beside 10,000 queued in one session, ms p50"] = under
    figures["reference: the same claim without them, ms p50"] = alone
    figures["ratio claim beside the flood : without"] = under / alone
    for at_once, rate in rates.items():
        figures[f"turns per second, {at_once} at once, 1 replica"] = rate
    figures["statements of a tool call's two steps"] = step.statements
    figures["a tool call's two steps, ms p50"] = step.milliseconds
    figures["reference: two transactions of one insert, ms p50"] = trip
    figures["ratio steps : reference"] = step.milliseconds / trip
    figures["kill to first new event, leases of 3 s, s p50"] = recovered[len(recovered) // 2]
    figures["kill to first new event, leases of 3 s, s p99"] = recovered[int(len(recovered) * 0.99)]
    figures["idle replica, transactions per second"] = rest.transactions
    figures["idle replica, share of a core"] = rest.core
    figures["idle replica, resident MB"] = rest.megabytes
    return figures | delivery


def main() -> None:
    """Print and keep."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fraction of the work, to see that the workloads run")
    figures = asyncio.run(run(parser.parse_args().quick))
    width = max(map(len, figures))
    for name, figure in figures.items():
        print(f"{name:<{width}}  {figure:10.2f}")
    RESULTS.mkdir(exist_ok=True)
    at = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    record = {"at": at, "machine": platform.platform(), "figures": figures}
    (RESULTS / f"{at}.json").write_text(json.dumps(record, indent=1) + "\n")


main()
