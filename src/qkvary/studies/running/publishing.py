"""Calls a function that shows the results so far, now and then. Torch-free."""

import time
from collections.abc import Callable

FIRST_SECONDS = 10.0
"""The minimum of seconds before the first call."""
EARLY_SECONDS, EARLY_INTERVAL_SECONDS = 300.0, 20.0
"""The first seconds, in which people look often, and the minimum between two calls in them."""
INTERVAL_SECONDS = 30.0
"""The minimum of seconds between two calls later."""
SHARE = 0.05
"""The maximum share of the time that the later calls take."""


class Publisher:
    """Calls a function when there are new results and the last call was long enough ago."""

    def __init__(self, function: Callable[[], str] | None = None) -> None:
        self._function = function
        self._new = False
        self._started = time.monotonic()
        self._next = self._started + FIRST_SECONDS

    def add(self) -> None:
        """Note that there is a new result."""
        self._new = True

    def publish(self) -> str:
        """Call the function if it is time; after an error never again.

        Returns:
            What the function returns or, in a sentence, its error; else an empty text.
        """
        began = time.monotonic()
        if self._function is None or not self._new or began < self._next:
            return ""
        self._new = False
        try:
            said = self._function()
        # No page is worth a study.
        except Exception as error:  # noqa: BLE001
            self._function = None
            return f"the page is not written before the end: {error}"
        ended = time.monotonic()
        if ended - self._started < EARLY_SECONDS:
            self._next = began + max(EARLY_INTERVAL_SECONDS, 2 * (ended - began))
        else:
            self._next = began + max(INTERVAL_SECONDS, (ended - began) / SHARE)
        return said
