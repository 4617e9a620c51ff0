from __future__ import annotations

from pathlib import Path

import pytest

from s2sbench_callback.items import Audio, Context, Item
from s2sbench_callback.prompts import lacks, paper_instruction, prompt

AUDIO, WET, DRY, STORY_WET, STORY_DRY = (Audio(Path(f"{name}.wav"), name, 1.0) for name in ("context", "wet", "dry", "story_wet", "story_dry"))
ENGLISH = Item("1", (Context("It rained.", AUDIO),) * 2, ("He was wet.", "He was dry."), 0)
CHINESE = Item("2", (Context("下雨了。", AUDIO),) * 2, ("他淋湿了。", "他没淋湿。"), 0)
SPOKEN = Item("3", ENGLISH.contexts, ENGLISH.candidates, 0, candidate_audios=(WET, DRY))
WHOLE = Item("4", (Context("It rained."),) * 2, ENGLISH.candidates, 0, story_audios=(STORY_WET, STORY_DRY))
SILENT = Item("5", (Context("It rained."),) * 2, ENGLISH.candidates, 0)


def test_spoken_contexts_have_an_instruction_and_no_space() -> None:
    english = prompt("s2t", "en", ENGLISH, 0, paper_instruction("s2t", "en"))
    assert english.context == ("Below is a segment of alternating speech and text content: ", AUDIO)
    assert english.candidate == "He was wet."
    chinese = prompt("s2t", "zh", CHINESE, 1, paper_instruction("s2t", "zh"))
    assert chinese.context == ("下面是一段语音和文本交错的内容：", AUDIO)
    assert chinese.candidate == "他没淋湿。"


def test_written_contexts_have_no_instruction_and_a_space_in_english_alone() -> None:
    english = prompt("t2t", "en", ENGLISH, 0, paper_instruction("t2t", "en"))
    assert (english.context, english.candidate) == (("It rained.",), " He was wet.")
    chinese = prompt("t2t", "zh", CHINESE, 0)
    assert (chinese.context, chinese.candidate) == (("下雨了。",), "他淋湿了。")


def test_spoken_candidates_follow_a_spoken_or_a_written_context() -> None:
    assert prompt("s2s", "en", SPOKEN, 1).context == (AUDIO,)
    assert prompt("s2s", "en", SPOKEN, 1).candidate == DRY
    assert prompt("s2s", "en", SPOKEN, 1).recordings == (AUDIO, DRY)
    assert prompt("t2s", "en", SPOKEN, 0).context == ("It rained.",)
    assert prompt("t2s", "en", SPOKEN, 0).candidate == WET


def test_a_whole_spoken_story_is_its_own_candidate() -> None:
    assert prompt("s2s", "en", WHOLE, 1).context == ()
    assert prompt("s2s", "en", WHOLE, 1).candidate == STORY_DRY
    # Also where endings are there alone and their contexts are not.
    both = Item("6", WHOLE.contexts, WHOLE.candidates, 0, candidate_audios=(WET, DRY), story_audios=(STORY_WET, STORY_DRY))
    assert prompt("s2s", "en", both, 0) == prompt("s2s", "en", WHOLE, 0)


def test_a_condition_needs_its_recordings() -> None:
    with pytest.raises(ValueError, match=r"S→T cannot be asked of item '5': it has no recordings"):
        prompt("s2t", "en", SILENT, 0)
    with pytest.raises(ValueError, match=r"T→S cannot be asked of item '4': it has no recordings of candidates alone \(candidate_audio_path"):
        prompt("t2s", "en", WHOLE, 0)
    assert lacks(SILENT, "t2t") is None
    assert lacks(ENGLISH, "s2s") == "no spoken candidates (candidate_audio_path or story_audio_path in the YAML)"
    assert lacks(WHOLE, "s2s") is None
