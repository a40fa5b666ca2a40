"""The ledger of the toolbox's calls, and the settings that give its tools to a replica."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLBOX = ROOT / "testbed" / "toolbox"


@dataclass(frozen=True)
class Entry:
    """One line: `what` is begin or end."""

    what: str
    tool: str
    argument: str
    call_id: str
    pid: int


@dataclass(frozen=True)
class Ledger:
    """Reads what the tools of any replica have written to `path`."""

    path: Path

    def settings(self) -> dict[str, str]:
        """For `Stage.replicas(settings=...)`."""
        return {"PYTHONPATH": f"{ROOT}:{TOOLBOX}", "TOOLBOX_LEDGER": str(self.path)}

    def entries(self, what: str = "begin", tool: str | None = None) -> list[Entry]:
        """The lines so far, in order."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = []
        for line in lines:
            kind, name, argument, call_id, pid = line.split("\t")
            if kind == what and tool in (None, name):
                found.append(Entry(kind, name, argument, call_id, int(pid)))
        return found

    def times(self, tool: str, argument: str) -> int:
        """How often a tool has begun with an argument."""
        return sum(entry.argument == argument for entry in self.entries(tool=tool))
