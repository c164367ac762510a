"""What running code is timed by."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Nanoseconds since some moment."""

thread_time: Clock = time.thread_time_ns if sys.platform == "linux" else time.perf_counter_ns
"""This thread's time on the processor, where the system tells that often enough: what other
processes take is not counted, nor what other threads do."""
