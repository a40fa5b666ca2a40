"""Row-level security for turns, and the roles under which a replica runs (expands).

Replicas of the release before go on as the owner of the tables, whom the policies do not bind. The SQL beside this file is frozen: a migration
never imports the code that it serves.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in Path(__file__).with_suffix(".sql").read_text().split("\n;;\n"):
        op.execute(text(statement.replace(":", "\\:")))
