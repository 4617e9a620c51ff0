"""Where questions come from: the release's files, spoken Story Cloze sets, and the embedded benchmark."""

from s2sbench_callback.benchmarks.mini import mini
from s2sbench_callback.benchmarks.official import official
from s2sbench_callback.benchmarks.spoken_story_cloze import spoken_story_cloze

__all__ = ["mini", "official", "spoken_story_cloze"]
