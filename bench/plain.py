"""`python -m bench.plain URL COUNT AT_ONCE`: the sends of the benchmark by the plain HTTP client alone; prints how many a second."""

from __future__ import annotations

import asyncio
import sys
import time

import httpx


async def _rate(url: str, count: int, at_once: int) -> float:
    numbers = iter(range(count))
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as client:

        async def one_after_the_other() -> None:
            for n in numbers:
                body = {
                    "op": n,
                    "attempt": 1,
                    "replica": "plain:0:0",
                    "kind": "send_text",
                    "chat": f"c{n}",
                    "text": "x",
                }
                (await client.post("/send", json={**body, "key": f"plain-{n}", "bot": "plain"})).raise_for_status()

        await client.get("/log", params={"warm": 1})
        started = time.perf_counter()
        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
        return count / (time.perf_counter() - started)


if __name__ == "__main__":
    print(asyncio.run(_rate(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
