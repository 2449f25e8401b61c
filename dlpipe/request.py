"""What a worker tells of a message that holds an address, perhaps a signed one: that it came, and no more (SAFE-2).

All other messages carry ids (SAFE-1). Named by `tasks`, so that nobody but a worker imports it.
"""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

NOT_SHOWN = "(not shown)"


class PlanRequest(Request):
    """Events, inspection and log lines, and so Flower, describe a message by what is set here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._argsrepr = self._kwargsrepr = NOT_SHOWN
        self.request_dict.update(argsrepr=NOT_SHOWN, kwargsrepr=NOT_SHOWN)

    def info(self, safe: bool = False) -> Any:
        """Of messages that wait, Flower asks for the true arguments."""
        return super().info(safe=True)
