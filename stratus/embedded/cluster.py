"""Makes the data folder, or checks the one that is there, so that the guard has only to run it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stratus.embedded.account import check_reach, clean_env, identity, server_account
from stratus.embedded.binaries import Binaries, find, within_reach
from stratus.embedded.errors import EmbeddedError
from stratus.embedded.folder import Record, ServerFolder

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}
LONGEST_SOCKET = 100  # bytes; sun_path holds 104 (macOS) to 108 (Linux), see unix(7)


def prepare(folder: ServerFolder, settings: Mapping[str, str]) -> None:
    """Leave a data folder and a record that the guard can run; the caller holds GUARD.

    Raises EmbeddedError.
    """
    for half_made in folder.home.glob("data.new.*"):
        shutil.rmtree(half_made, ignore_errors=True)  # an initdb that outlived its parent may still write there
    major, before = folder.major(), folder.record()
    account = server_account(folder.data)
    found = find(major)
    check_reach(folder.home, account)
    found = within_reach(found, folder.home, account)
    if major is not None and before is None:
        raise EmbeddedError(f"{folder.data} is there, but server.json with its password is not; restore it beside it")
    record = Record(
        password=before.password if before else secrets.token_urlsafe(24),
        socket_folder=str(_socket_folder(folder, before, account)),
        programs=str(found.folder),
        settings={**SETTINGS, **settings},
    )
    folder.write(record)
    if major is None:
        _create(folder, record, found, account)


def _socket_folder(folder: ServerFolder, before: Record | None, account: pwd.struct_passwd | None) -> Path:
    place = folder.home / "socket"
    if len(os.fsencode(place / ".s.PGSQL.5432")) > LONGEST_SOCKET:
        owner = os.geteuid() if account is None else account.pw_uid
        place = Path(before.socket_folder) if before else place
        if place.parent == folder.home or not place.is_dir() or place.stat().st_uid != owner:
            place = Path(tempfile.mkdtemp(prefix="stratus-", dir="/tmp"))  # short, whatever TMPDIR is
    place.mkdir(mode=0o700, exist_ok=True)
    _give(place, account)
    return place


def _give(path: Path, account: pwd.struct_passwd | None) -> None:
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid)


def _create(folder: ServerFolder, record: Record, found: Binaries, account: pwd.struct_passwd | None) -> None:
    """initdb beside the data folder, then rename: a process that dies half-way leaves no half-made cluster."""
    draft = folder.home / f"data.new.{secrets.token_hex(6)}"  # never the same twice, because of that initdb
    draft.mkdir(mode=0o700)
    _give(draft, account)
    locale = ["--locale=C"]
    if found.major >= 17:  # sorts by code point like C, but knows the case of letters beyond ASCII
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    source, sink = os.pipe()  # so that the password is never on disk or in the list of processes
    try:
        os.write(sink, f"{record.password}\n".encode())
        os.close(sink)
        if account is not None:
            os.fchown(source, account.pw_uid, account.pw_gid)
        where = [
            str(found.folder / "initdb"),
            "-D",
            str(draft),
            f"--username={record.user}",
            f"--pwfile=/dev/fd/{source}",
        ]
        done = subprocess.run(
            [*where, "--auth=scram-sha-256", "--encoding=UTF8", "--data-checksums", *locale],
            pass_fds=(source,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env=clean_env(),
            **identity(account),
        )
    finally:
        os.close(source)
    if done.returncode != 0:
        shutil.rmtree(draft, ignore_errors=True)
        raise EmbeddedError(f"initdb failed: {done.stderr.strip()[-800:]}")
    draft.rename(folder.data)
    folder.sync()
