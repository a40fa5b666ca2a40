"""From when each bot and each chat may be sent to again (expands).

The SQL beside this file was printed by `make ddl` and is frozen: a migration never imports the code that made it.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in Path(__file__).with_suffix(".sql").read_text().split("\n;;\n"):
        op.execute(text(statement.replace(":", "\\:")))
