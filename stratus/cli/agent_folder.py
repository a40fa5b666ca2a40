"""The folder of agent files that `stratus up` follows: what changes in it is stored, what cannot be read is told once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratus.domain.agent import AgentDefinition
    from stratus.store.database import Database

FIRST_AGENT = """---
id: demo
name: Demo
model: demo
tools: [current_time]
---
You are the demo agent. The model `demo` needs no account. To talk to a real one, write its name here, such as
`model: anthropic:claude-sonnet-4-5`, and set its key in the environment.
"""


class AgentFolder:
    """An agent whose file goes away stays: the database is its home."""

    def __init__(self, db: Database, path: Path) -> None:
        self.path = path
        self._db = db
        self._seen: dict[Path, tuple[int, int]] = {}

    def prepare(self) -> None:
        """Make the folder, with a first agent where there is none. Raises BadSetting."""
        from stratus.domain.errors import BadSetting

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._files():
                (self.path / "demo.md").write_text(FIRST_AGENT, encoding="utf-8")
        except OSError as error:
            raise BadSetting(
                f"STRATUS_HOME: {self.path} cannot be written ({error.strerror}); choose another"
            ) from error

    async def follow(self) -> bool:
        """A step of a loop: store the agents if any file changed since the last step. Raises DatabaseAway; the next step then tries again."""
        import structlog

        from stratus.store import agent

        files = self._files()
        if files == self._seen:
            return False
        log = structlog.get_logger(__name__)
        definitions, faults = _read(files)
        for fault in faults:
            log.warning("agent.refused", cause=fault)
        for one in await agent.apply(self._db, definitions):
            if one.changed:
                log.info("agent.applied", agent=one.id, revision=one.revision)
        self._seen = files
        return False

    def _files(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for file in sorted(self.path.glob("*.md")):
            try:
                stat = file.stat()
            except FileNotFoundError:  # gone since it was listed
                continue
            if not file.name.startswith("."):  # an editor's own
                found[file] = (stat.st_mtime_ns, stat.st_size)
        return found


def _read(files: dict[Path, tuple[int, int]]) -> tuple[list[AgentDefinition], list[str]]:
    """File by file, so that a bad one, or one that is half written, keeps no other from being stored."""
    from stratus.agents import souls
    from stratus.domain.errors import BadInput

    found: dict[str, AgentDefinition] = {}
    faults = []
    for file in files:
        try:
            definition = souls.parse(file.read_text(encoding="utf-8"), source=str(file))
        except (BadInput, OSError, UnicodeDecodeError) as error:
            faults.append(f"{error}")
            continue
        if definition.id in found:
            faults.append(f"{file}: `id` {definition.id!r} is another file's; give it another")
        found.setdefault(definition.id, definition)
    return list(found.values()), faults
