"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

State whether this step expands (safe before the new code runs) or contracts (only after the old code is gone).
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
