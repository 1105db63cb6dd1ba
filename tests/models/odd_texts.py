"""Made-up texts that show what tokenizers do with white space, runs, scripts, bytes and pieces of words."""

import random
from collections.abc import Iterator

LETTERS = (
    " " * 12 + "\n\t.,!?-_=*#/\\'\"()[]{}<>|~`0123456789aeiouthsrnlABCDEFXYZ▁"
    "éßñçöü中文字日本語한국어русскийελ😀👍🏽\u200d\u00a0\u3000\u0301ﬁ²½\x00\x07\x85"
)
WORDS = (
    "the", "and", "ing", "er", "ab", "aba", "banana", "  ", "   ", "\n", "\n\n", "\t", " of", "ation", "==", "----",
    "<s>", "</s>", "<unk>", "<0x0A>", "<table>", "<tool>", "<|end|>", "  <tool> ", "don't", "I'M", "123", " 4567", "0",
    "camelCase", "ß", "日本", " 中文", "한국", "👍🏽", "é", "e\u0301", "▁", "▁the", "function", "return ", "self.",
    " unused", "aaa", "abab",
)  # fmt: skip
RUNS = " \n\t-=_.*#aex▁0b"


def odd_texts(count: int, seed: int = 1) -> Iterator[str]:
    """The same texts for the same arguments: recorded ids are compared by them."""
    draw = random.Random(seed)
    for place in range(count):
        match place % 4:
            case 0:
                yield "".join(draw.choice(LETTERS) for _ in range(draw.randint(1, 60)))
            case 1:
                yield "".join(draw.choice(WORDS) for _ in range(draw.randint(1, 20)))
            case 2:
                yield "".join(draw.choice(RUNS) * draw.randint(1, 40) for _ in range(draw.randint(1, 6)))
            case _:
                few = [draw.choice("abcdehilnorst▁ =-") for _ in range(3)]
                yield "".join(draw.choice(few) for _ in range(draw.randint(1, 40)))
