"""How a command ends that a signal was to end, and that has nothing to report: with the status a shell gives the signal."""

from typing import final


@final
class Interrupted(KeyboardInterrupt):
    """Raised by a command that waited for a good moment to obey a signal. `status`: what the process ends with, 128 + the
    signal's number: 130 for Ctrl-C, 143 for SIGTERM.

    What to do: nothing, or let it through; `kvcache` turns it into that exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
