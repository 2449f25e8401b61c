"""Who works on what right now: the Redis lock, its heartbeat, who an owner is, and what people may watch."""
