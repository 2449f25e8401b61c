"""Alembic runs on the connection that dlpipe.db.migrate hands it: in its transaction if it is in one (SQLite), else
with one of its own for each revision (PostgreSQL).
"""

from alembic import context

from dlpipe.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    transaction_per_migration=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
