"""Where files come from; each source implements `core.ports.Source`."""
