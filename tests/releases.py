"""The release after this one, for tests: a copy of the package with one more migration, which its code makes use of."""

from __future__ import annotations

import shutil
from pathlib import Path

from dlpipe.db.schema import SCHEMA_VERSION
from tests.fleet import REPOSITORY

NEXT = f"{int(SCHEMA_VERSION) + 1:04}"
MIGRATION = f'''"""Who made an op, as a later release writes it down."""

import sqlalchemy as sa
from alembic import op

from dlpipe.db.migrations.beside import create_index

revision = "{NEXT}"
down_revision = "{SCHEMA_VERSION}"
branch_labels = None
depends_on = None

older_code_goes_on = %s


def upgrade() -> None:
    op.create_table("releases", sa.Column("name", sa.String(16), primary_key=True))
    op.add_column("artifact_ops", sa.Column("made_by", sa.String(16)))
    %s
    create_index("ix_artifact_ops_made_by", "artifact_ops", ["made_by"])
'''
BREAKS = 'op.alter_column("artifact_ops", "result_code", new_column_name="outcome")'
RENAMED = 'sa.Column("result_code", sa.String(64))'
USES_IT = """
artifact_ops.append_column(sa.Column("made_by", sa.String(16), default="next", onupdate="next"))
"""


def next_release(folder: Path, *, breaks: bool = False) -> Path:
    """Make it; answers the folder that has to be on Python's path."""
    shutil.copytree(REPOSITORY / "dlpipe", folder / "dlpipe", ignore=shutil.ignore_patterns("__pycache__"))
    tables = folder / "dlpipe" / "db" / "schema.py"
    was, now = f'SCHEMA_VERSION = "{SCHEMA_VERSION}"', f'SCHEMA_VERSION = "{NEXT}"'
    text = tables.read_text()
    assert text.count(was) == 1
    text = text.replace(was, now) + USES_IT
    if breaks:
        assert text.count(RENAMED) == 1
        text = text.replace(RENAMED, 'sa.Column("outcome", sa.String(64), key="result_code")')
    tables.write_text(text)
    versions = folder / "dlpipe" / "db" / "migrations" / "versions"
    (versions / f"v{NEXT}_planted.py").write_text(MIGRATION % (not breaks, BREAKS if breaks else "pass"))
    return folder
