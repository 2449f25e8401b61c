"""Measurements side by side: ours and the peers, interleaved in one run, as ratios. See docs/benchmarks.md."""
