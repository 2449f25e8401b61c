"""Rules only: no I/O, no clock, no randomness, no third-party library."""
