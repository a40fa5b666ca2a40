"""Which account the server runs as, and what that account can reach.

postgres refuses to run as root (https://www.postgresql.org/docs/current/postgres-user.html).
"""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from stratus.embedded.errors import EmbeddedError

FALLBACKS = ("stratus", "postgres", "nobody")
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "ICU_DATA")


def server_account(data: Path) -> pwd.struct_passwd | None:
    """The account for the server of this data folder; None means: our own.

    An existing data folder keeps its owner, whatever accounts appear later. Raises EmbeddedError when there is none.
    """
    version = data / "PG_VERSION"
    owner = version.stat().st_uid if version.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise EmbeddedError(f"{data} belongs to uid {owner}; run as that account, or set STRATUS_HOME")
        return None
    if owner is not None:
        return _owner(data, owner)
    wanted = os.environ.get("STRATUS_PG_USER")
    for name in [wanted] if wanted else FALLBACKS:
        try:
            return pwd.getpwnam(name)  # initdb needs a passwd entry, a bare uid will not do
        except KeyError:
            continue
    raise EmbeddedError(
        f"PostgreSQL cannot run as root, and there is no account {wanted or ', '.join(FALLBACKS)}; "
        "set STRATUS_PG_USER to an unprivileged account, or STRATUS_DATABASE_URL"
    )


def _owner(data: Path, uid: int) -> pwd.struct_passwd:
    try:
        account = pwd.getpwuid(uid)
    except KeyError as error:
        raise EmbeddedError(
            f"{data} belongs to uid {uid}, which has no account here; create one or chown it"
        ) from error
    if uid == 0:
        raise EmbeddedError(
            f"{data} belongs to root, and PostgreSQL cannot run as root; chown -R it to another account"
        )
    return account


def identity(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Arguments for `subprocess` that drop to the account for good."""
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def clean_env() -> dict[str, str]:
    """What the server and its tools get of our environment: no secrets, no PG* settings."""
    return {"LC_ALL": "C", "TZ": "UTC"} | {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def reaches(path: Path, account: pwd.struct_passwd | None) -> bool:
    """Whether the account can enter the folder or run the file."""
    test = ["/bin/sh", "-c", 'test -x "$0"', str(path)]
    return subprocess.run(test, cwd="/", env=clean_env(), **identity(account)).returncode == 0


def check_reach(home: Path, account: pwd.struct_passwd | None) -> None:
    """Raise EmbeddedError, naming the folder that is closed, when the account cannot enter `home`."""
    if account is None or reaches(home, account):
        return
    closed = next(p for p in [*reversed(home.parents), home] if not reaches(p, account))
    raise EmbeddedError(
        f"{closed} is closed to the account {account.pw_name}, which PostgreSQL runs as when root starts Stratus; "
        f"set STRATUS_HOME to a folder it can enter (such as /var/lib/stratus), or run chmod a+x {closed}, "
        "or set STRATUS_PG_USER or STRATUS_DATABASE_URL"
    )
