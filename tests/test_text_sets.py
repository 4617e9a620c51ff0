from __future__ import annotations

import json
from pathlib import Path

import pytest

from s2sbench_callback.benchmarks.statements import statement
from s2sbench_callback.benchmarks.text_sets import copa, multiple_choice, story_cloze

HEADER = (
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n"
)


def test_story_cloze_as_csv_with_quotes_and_line_breaks_inside(tmp_path: Path) -> None:
    path = tmp_path / "stories.csv"
    path.write_text(
        "\ufeff" + HEADER + 'a1,Tom ran.,"He fell, hard.",He got up.,"He said ""ouch"".",He limped home.,He flew home.,1\n'
        "b2,Ann cooked.,It burnt.,Smoke rose.,The alarm rang.,She slept.,She opened a window.,2\n",
        encoding="utf-8",
    )
    benchmark = story_cloze(path)
    first, second = benchmark.items
    assert first.contexts[0].text == 'Tom ran. He fell, hard. He got up. He said "ouch".'
    assert (first.id, first.candidates, first.answer) == ("a1", ("He limped home.", "He flew home."), 0)
    assert (second.id, second.candidates[second.answer]) == ("b2", "She opened a window.")
    assert (benchmark.language, benchmark.tie_rule) == ("en", "lose")


def test_xstory_cloze_has_tabs_and_quotes_that_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stories.tsv"
    path.write_text(HEADER.replace(",", "\t") + '1\t"他来了。\t他坐下。\t他说"好"。\t天黑了。\t他走了。\t他飞了。\t1\n', encoding="utf-8")
    (item,) = story_cloze(path, "zh").items
    assert item.contexts[0].text == '"他来了。他坐下。他说"好"。天黑了。'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "the columns InputSentence1, .*AnswerRightEnding are missing; the first line names a, b"),
        (HEADER, "has a header and no rows"),
        (HEADER + "x,a,b,c,d,e,f,3\n", "line 2: AnswerRightEnding must be 1 or 2, got '3'"),
        (HEADER + "x,a,b,c,d,e,f,1\ny,a,b,c,d,e,f\n", "line 3: the row has fewer cells"),
        (HEADER + "x,a,b,c,d,e,f,1,9\n", "line 2: the row has more cells"),
        (HEADER + "x,a,b,,d,e,f,1\n", "line 2: InputSentence3 must be a text that is not empty"),
        (HEADER + "x,a,b,c,d,e,e,1\n", "line 2: item 'x' has identical candidates"),
        (HEADER + 'x,a,b,c,d,e,"f,1\n', "after line 1: unexpected end of data"),
        (HEADER + "x,a,b,c,d,e,f,1\nx,a,b,c,d,e,f,1\n", "two items with the id 'x'"),
    ],
)
def test_faults_of_a_table_are_named_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "stories.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        story_cloze(path)


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        story_cloze(tmp_path / "none.csv")
    (tmp_path / "gb.csv").write_bytes((HEADER + "x,天,b,c,d,e,f,1\n").encode("gb18030"))
    with pytest.raises(ValueError, match="not UTF-8"):
        story_cloze(tmp_path / "gb.csv")


def test_copa_goes_on_from_its_premise(tmp_path: Path) -> None:
    rows = [
        {"premise": "The man broke his toe.", "choice1": "He got a hole in his sock.", "choice2": "He dropped a hammer on it.", "question": "cause"},
        {"premise": "I tipped the bottle.", "choice1": "The liquid poured out.", "choice2": "I'd frozen it.", "question": "effect"},
    ]
    path = tmp_path / "copa.jsonl"
    path.write_text("\n".join(json.dumps({**row, "label": label, "idx": 7 + label}) for label, row in zip((1, 0), rows, strict=True)) + "\n")
    first, second = copa(path).items
    assert first.contexts[0].text == "The man broke his toe because"
    assert first.candidates == ("he got a hole in his sock.", "he dropped a hammer on it.")
    assert (first.id, first.answer, second.id, second.answer) == ("8", 1, "7", 0)
    assert second.contexts[0].text == "I tipped the bottle, so"
    assert second.candidates == ("the liquid poured out.", "I'd frozen it.")
    path.write_text(
        json.dumps({"premise": "天黑了。", "choice1": "灯亮了。", "choice2": "鸟叫了。", "question": "effect", "label": 0}), encoding="utf-8"
    )
    (item,) = copa(path, "zh").items
    assert (item.contexts[0].text, item.candidates) == ("天黑了，所以", ("灯亮了。", "鸟叫了。"))
    for row, message in [
        ({"premise": "a"}, "line 1: each row must be a JSON object with premise, .*; it lacks choice1, choice2, question, label"),
        ({**rows[0], "label": 2}, "line 1: label must be 0 or 1, got 2"),
        ({**rows[0], "question": "why", "label": 1}, "line 1: question must be 'cause' or 'effect', got 'why'"),
        ([], "line 1: each row must be a JSON object"),
    ]:
        path.write_text(json.dumps(row))
        with pytest.raises(ValueError, match=message):
            copa(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="line 1: broken JSON"):
        copa(path)


@pytest.mark.parametrize(
    ("stem", "options", "expected"),
    [
        ("中国的首都是（ ）。", ["北京", "上海。"], ("中国的首都是", ("北京。", "上海。"))),
        ("水的沸点在高山上比在海边___，所以饭不易熟。", ["低", "高"], ("水的沸点在高山上比在海边", ("低，所以饭不易熟。", "高，所以饭不易熟。"))),
        ("《红楼梦》的作者是", ["曹雪芹", "罗贯中"], ("《红楼梦》的作者是", ("曹雪芹。", "罗贯中。"))),
        ("（ ）是中国最长的河", ["长江", "黄河"], None),
        ("下列说法正确的是（ ）", ["甲", "乙"], None),
        ("谁写了《红楼梦》？", ["曹雪芹", "罗贯中"], None),
        ("从（ ）到（ ）", ["甲", "乙"], None),
        ("中国的首都是（ ）", ["北京", "以上都不对"], None),
        ("地球绕着太阳转", ["对", "错"], None),
    ],
)
def test_chinese_stems_become_statements_where_that_makes_a_sentence(stem: str, options: list[str], expected: object) -> None:
    assert statement(stem, options, "zh") == expected


@pytest.mark.parametrize(
    ("stem", "options", "expected"),
    [
        ("The capital of France is", ["Paris", "Lyon."], ("The capital of France is", ("Paris.", "Lyon."))),
        (
            "At sea level water boils at ____ degrees Celsius.",
            ["100", "50"],
            ("At sea level water boils at", ("100 degrees Celsius.", "50 degrees Celsius.")),
        ),
        (
            "A bird that cannot fly is the _____, for example.",
            ["penguin", "gull"],
            ("A bird that cannot fly is the", ("penguin, for example.", "gull, for example.")),
        ),
        ("Which of these is a mammal?", ["whale", "shark"], None),
        ("All of them are", ["red", "none of the above"], None),
        ("Water is wet.", ["true", "false"], None),
    ],
)
def test_english_stems_likewise(stem: str, options: list[str], expected: object) -> None:
    assert statement(stem, options, "en") == expected


def test_multiple_choice_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "choice.csv"
    head = ",Question,A,B,C,D,Answer\n"
    path.write_text(head + "0,中国的首都是（ ）,上海,北京,广州,深圳,B\n1,下列哪一项正确？,一,二,三,四,A\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"1 of 2 questions cannot be said as a statement and are left out"):
        benchmark = multiple_choice(path)
    (item,) = benchmark.items
    assert (item.id, item.contexts[0].text, item.candidates, item.answer) == ("0", "中国的首都是", ("上海。", "北京。", "广州。", "深圳。"), 1)
    assert benchmark.tie_rule == "win"
    path.write_text(head + "1,下列哪一项正确？,一,二,三,四,A\n", encoding="utf-8")
    with pytest.raises(ValueError, match="none of its 1 questions can be said as a statement"):
        multiple_choice(path)
    path.write_text(head + "1,中国的首都是（ ）,一,二,三,四,E\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: Answer 'E' is no letter of the row; it has A, B, C, D"):
        multiple_choice(path)
