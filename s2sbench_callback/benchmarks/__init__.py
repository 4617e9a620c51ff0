"""Where questions come from: the release's files and the embedded benchmark."""

from s2sbench_callback.benchmarks.mini import mini
from s2sbench_callback.benchmarks.official import official

__all__ = ["mini", "official"]
