"""Where questions come from: the release's files, spoken and written sets as they are commonly kept, the starter sets, and the embedded benchmark."""

from s2sbench_callback.benchmarks.hf_dataset import hf_dataset
from s2sbench_callback.benchmarks.in_turns import in_turns
from s2sbench_callback.benchmarks.mini import mini
from s2sbench_callback.benchmarks.official import official
from s2sbench_callback.benchmarks.spoken_story_cloze import spoken_story_cloze
from s2sbench_callback.benchmarks.starter import starter
from s2sbench_callback.benchmarks.text_sets import copa, multiple_choice, story_cloze

__all__ = ["copa", "hf_dataset", "in_turns", "mini", "multiple_choice", "official", "spoken_story_cloze", "starter", "story_cloze"]
