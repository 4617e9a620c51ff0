"""A multiple-choice question said as a statement: its stem up to the blank, and each option with what follows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from s2sbench_callback.items import Language

# Brackets around nothing, or a line to write on. Two of them are two blanks.
_BLANK = re.compile(r"[（(\[【]\s*[_＿\s]*[)）\]】]|[_＿]{2,}|…{2,}|\.{4,}")
_END = re.compile(r"[。．.？?！!\s]*$")
_GOES_ON: dict[Language, re.Pattern[str]] = {
    "zh": re.compile(r"(是|为|指|有|在|于|叫|叫做|叫作|称为|称作|包括|属于|位于|等于|由|到|成|作|即|：|:)$"),
    "en": re.compile(r"\b(is|are|was|were|be|been|of|in|on|at|by|to|from|for|with|as|called|than|that|because|the|an?)$|:$", re.IGNORECASE),
}
_ASKS_FOR_AN_OPTION: dict[Language, re.Pattern[str]] = {
    "zh": re.compile(r"下列|以下|下面|上述|选项|哪|什么|怎样|怎么|如何|多少|几|谁|吗|呢|何"),
    "en": re.compile(r"\b(which|what|who|whom|whose|when|where|why|how|following|options?|except)\b", re.IGNORECASE),
}
_SPEAKS_OF_OPTIONS: dict[Language, re.Pattern[str]] = {
    "zh": re.compile(r"以上|上述|都对|都不|皆是|皆非|均|[A-DＡ-Ｄ][、和与及]\s*[A-DＡ-Ｄ]|[①②③④⑤]"),
    "en": re.compile(r"\b(all|none|both|neither|any) of (the|these)\b|\b(above|below)\b|\b[A-D] (and|or|&) [A-D]\b", re.IGNORECASE),
}
_SHORTEST_CONTEXT = 4


def statement(stem: str, options: Sequence[str], language: Language) -> tuple[str, tuple[str, ...]] | None:
    """Context and candidates of a question, where it can be said as a statement.

    Args:
        stem: The question.
        options: Its options.
        language: Of both.

    Returns:
        What is said first, and what follows it for each option; ``None`` where that would be no sentence.
    """
    if _ASKS_FOR_AN_OPTION[language].search(stem) or any(_SPEAKS_OF_OPTIONS[language].search(option) for option in options):
        return None
    blanks = list(_BLANK.finditer(stem))
    if len(blanks) > 1:
        return None
    if blanks:
        before, after = stem[: blanks[0].start()].strip(), _END.sub("", stem[blanks[0].end() :]).strip()
    else:
        before, after = _END.sub("", stem).strip(), ""
        if not _GOES_ON[language].search(before):
            return None
    if len(before) < _SHORTEST_CONTEXT:
        return None
    space, stop = ("", "。") if language == "zh" else (" ", ".")
    # What follows a blank without a space belongs to the option: a comma, the rest of a Chinese sentence.
    joint = space if after[:1].isalnum() else ""
    return before, tuple(f"{_END.sub('', option.strip())}{joint}{after}{stop}" for option in options)
