"""Since when a job waits for room on the store's volume, which ends earlier than other waits (STREAM-7)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

older_code_goes_on = True


def upgrade() -> None:
    op.add_column("artifact_jobs", sa.Column("room_since", Moment(), nullable=True))
