"""How many new sessions a bot has started, counted for all replicas: asked and recorded in one transaction, before one is started.

Platforms punish too many: Discord ends all sessions and the bot's token over 1,000 in 24 h
(https://discord.com/developers/docs/events/gateway#session-start-limit-object).
"""

from __future__ import annotations

from stratus.store.database import Connection, Database

DAY_MAX = 900
FIRST_SECONDS = 5.0
MOST_SECONDS = 900.0
# A session that held for so long was no failure: after it the spacing begins anew.
HELD_SECONDS = 3600.0

# Row lock: session_start, alone in its transaction. `streak` counts starts that followed one another too soon.
_SPEND = """
INSERT INTO session_start AS s (platform, account_key, starts, streak, next_at)
VALUES ($1, $2, ARRAY[clock_timestamp()], 0, clock_timestamp() + make_interval(secs => $3))
    ON CONFLICT (platform, account_key) DO UPDATE
   SET starts = array(SELECT at FROM unnest(s.starts) AS at WHERE at > clock_timestamp() - interval '24 hours' ORDER BY at)
                || clock_timestamp(),
       streak = CASE WHEN s.starts[cardinality(s.starts)] < clock_timestamp() - make_interval(secs => $5) THEN 0 ELSE s.streak + 1 END,
       next_at = clock_timestamp() + make_interval(secs => CASE
                     WHEN s.starts[cardinality(s.starts)] < clock_timestamp() - make_interval(secs => $5) THEN $3::float8
                     ELSE least($4::float8, $3::float8 * power(2, least(s.streak + 1, 20))) END)
 WHERE s.next_at <= clock_timestamp()
   AND $6 > (SELECT count(*) FROM unnest(s.starts) AS at WHERE at > clock_timestamp() - interval '24 hours')
RETURNING true
"""

_WAIT = """
SELECT greatest(extract(epoch FROM next_at - clock_timestamp()),
                CASE WHEN cardinality(starts) >= $3
                     THEN extract(epoch FROM starts[cardinality(starts) - $3 + 1] + interval '24 hours' - clock_timestamp()) END,
                1)::float8
  FROM session_start WHERE platform = $1 AND account_key = $2
"""


async def spend(db: Database, platform: str, account: str) -> float:
    """Record one more start of the bot. 0: it may be made. Else nothing was recorded, and so many seconds must pass first.

    Starts in a row wait 5, 10, 20 … 900 s, and there are at most 900 in any 24 h. A commit whose answer was lost counts:
    the repeat is told to wait.
    """

    async def work(connection: Connection) -> float:
        taken = await connection.fetchval(_SPEND, platform, account, FIRST_SECONDS, MOST_SECONDS, HELD_SECONDS, DAY_MAX)
        if taken:
            return 0.0
        wait: float = await connection.fetchval(_WAIT, platform, account, DAY_MAX)
        return wait

    return await db.transact(work, idempotent=True)
