"""Operators' verdicts on ops, with who passed them (expands).

The SQL beside this file is frozen: a migration never imports the code that it serves.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in Path(__file__).with_suffix(".sql").read_text().split("\n;;\n"):
        op.execute(text(statement.replace(":", "\\:")))
