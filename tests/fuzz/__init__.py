"""What arrives from outside, mutated: seeded fuzzers that `make fuzz` runs, and the tests a short piece of."""
