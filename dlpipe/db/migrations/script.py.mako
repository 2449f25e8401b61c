"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

# Does code of the release before do its work on these tables? Then False is wrong; in doubt it is right (ADR 37).
older_code_goes_on = False


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
