"""Basic forms of a wish to forget in Korean, Chinese, Japanese and German.

Each comes with what looks like it and is none:
"잊지 마", "不要忘记", "忘れないで", "vergiss nicht".
"""

from __future__ import annotations

import re

from memory.requests.wording import Pattern, described

GERMAN = re.compile(r"vergiss|vergess|lösch|loesch|entfern|\bmerk|speicher")
#: Basic forms in other languages: the wish, and what looks like one and is none.
OTHER_LANGUAGES: tuple[tuple[Pattern, re.Pattern[str] | None], ...] = (
    (
        described(
            "korean",
            r"(?P<object>.*?)\s*(?:을|를|은|는|이|가|도|좀|에 대해|에 대해서)?\s*"
            r"(?:좀\s*)?(?:다\s*)?"
            r"(?:잊어|지워|삭제해|버려|없애|기억하지\s*(?:마|말))\s*(?:줘|주세요|주십시오|주실|줄래|버려|아|세요|라)?",
            "잊어줘, 지워줘, 삭제해 주세요, 기억하지 마",
        ),
        re.compile(r"잊지|지우지|삭제하지|버리지|없애지|잊어버렸|라고\s*(?:했|말)"),
    ),
    (
        described(
            "chinese",
            r"(?:请|麻烦|帮我|能不能|可以)*(?:把)?(?P<object>.*?)(?:忘掉|忘记|忘了|删除|删掉|抹去|清除|抹掉|不要记住"
            r"|别记住|别再记)(?P<tail>.*)",
            "请忘掉, 删除, 不要记住",
        ),
        re.compile(r"(?:别|不要|不能|勿|没)(?:忘|删|抹|清除)|我忘|说.*[:：]|文件|吗[?？]"),
    ),
    (
        described(
            "japanese",
            r"(?P<object>.*?)(?:を|は|も|のこと)?(?:忘れて|削除して|消して|覚えないで|記憶しないで)(?:ください|くれ|ほしい|下さい)?",
            "忘れてください, 削除して, 消して",
        ),
        re.compile(r"忘れないで|消さないで|削除しないで|忘れてしまっ|ファイル|と言っ"),
    ),
    (
        described(
            "german",
            r"(?:^|\b(?:bitte|und|dann|kannst du|könnten sie|können sie"
            r"|könntest du)\s+(?:bitte\s+)?)"
            r"(?:bitte\s+)?(?:vergiss|vergessen|lösche?n?|entferne?n?|merk dir"
            r"|speichere?)\b(?P<object>.*)",
            "vergiss, lösche, entferne",
        ),
        re.compile(
            r"\b(?:vergiss|vergessen sie)\s+(?:bitte\s+)?nicht\b|\bnicht\s+(?:vergessen|löschen"
            r"|entfernen)\b|\bdatei"
            r"|\bhabe?\b.*\bvergessen\b|\bmerk dir (?!.*\bnicht\b)|\bspeichere? (?!.*\bnicht\b)"
        ),
    ),
)
