"""SIGINT before the reactor handles it ends the process, as SIGTERM does.

Python would raise KeyboardInterrupt instead. In an import it shows a traceback; while Twisted loads
plugins it is logged as an error of the plugin, and the broker starts nevertheless.

This module imports nothing of the broker, so that it works while the rest is being imported.
"""

from __future__ import annotations

import signal
from typing import Any


def end_at_interrupt() -> None:
    """End the process at SIGINT from now on, unless the signal is ignored or has a handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def leave_interrupt_to(reactor: Any) -> None:
    """Undo ``end_at_interrupt`` when ``reactor`` starts: it replaces no handler but Python's."""
    reactor.addSystemEventTrigger("before", "startup", _restore)


def _restore() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
