"""`dlpipe metrics`."""

from __future__ import annotations

import click

from dlpipe.cli import EXIT_OK, output


@click.command(
    epilog="""\b
Examples:
  dlpipe metrics
  dlpipe metrics > /var/lib/node_exporter/textfile/dlpipe.prom

\b
Exit status: 0 printed, 1 the ledger did not answer, 2 wrong use.
"""
)
def metrics() -> int:
    """Print the ledger's figures once, in the format of Prometheus.

    What stands in the ledger, over all tenants. What happens in workers, and how fast, they show themselves
    (metrics.port in the settings).
    """
    from dlpipe import wiring
    from dlpipe.telemetry import page

    with wiring.database().read() as unit:
        waiting = unit.figures.waiting()
    with wiring.database().read() as unit:
        totals = unit.figures.totals()
    output.exact(page.of_ledger(waiting, totals).rstrip("\n"))
    return EXIT_OK
