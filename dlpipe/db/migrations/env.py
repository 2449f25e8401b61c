"""Alembic runs on the connection that dlpipe.db.migrate hands it, inside that connection's transaction."""

from alembic import context

from dlpipe.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    compare_type=True,
)
context.run_migrations()
