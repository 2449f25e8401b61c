"""The only place with SQL. Two writes that must agree are in one transaction, guarded by the fence."""

from dlpipe.db.engine import SqlDatabase

__all__ = ["SqlDatabase"]
