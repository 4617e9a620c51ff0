from __future__ import annotations

from pathlib import Path

import pytest

from s2sbench_callback.items import Audio, Context
from s2sbench_callback.prompts import prompt

AUDIO = Audio(Path("a.wav"), "abc", 1.0)


def test_spoken_contexts_have_an_instruction_and_no_space() -> None:
    english = prompt("s2t", "en", Context("It rained.", AUDIO), "He was wet.")
    assert english.context == ("Below is a segment of alternating speech and text content: ", AUDIO)
    assert english.candidate == "He was wet."
    chinese = prompt("s2t", "zh", Context("下雨了。", AUDIO), "他淋湿了。")
    assert chinese.context == ("下面是一段语音和文本交错的内容：", AUDIO)
    assert chinese.candidate == "他淋湿了。"


def test_written_contexts_have_no_instruction_and_a_space_in_english_alone() -> None:
    english = prompt("t2t", "en", Context("It rained.", AUDIO), "He was wet.")
    assert (english.context, english.candidate) == (("It rained.",), " He was wet.")
    chinese = prompt("t2t", "zh", Context("下雨了。"), "他淋湿了。")
    assert (chinese.context, chinese.candidate) == (("下雨了。",), "他淋湿了。")


def test_speech_needs_a_recording() -> None:
    with pytest.raises(ValueError, match=r"S→T needs a recording, and there is none for the context 'It rained.'"):
        prompt("s2t", "en", Context("It rained."), "He was wet.")
