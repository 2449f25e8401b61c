"""What comes in from the broker: malformed messages are dropped before Celery trusts them (ADR 45)."""
