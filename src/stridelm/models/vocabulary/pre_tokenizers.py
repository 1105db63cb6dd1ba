"""How BPE tokenizers cut a text into words, by the names that llama.cpp gives to them.

The patterns say what llama.cpp does, not what the model's folder says: where the two differ, a GGUF file's ids are
llama.cpp's. Each was compared with its ids (tests/data/llama_cpp_synthetic_ids.json).
"""

from tokenizers import Regex, pre_tokenizers

# Contractions are spelt out: `(?i:...)` would also match letters that llama.cpp does not fold, such as the long s.
CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
# Letters without case stand in both classes, and so does every letter beyond ASCII: llama.cpp sees no case there.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END"
    r"|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
# White space is in none of llama.cpp's ranges: beyond ASCII it reads all of it as one control character.
_CHINESE = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF&&[^\s]]+"
# DeepSeek's list of letters ends with an older Unicode, and has no lower case of Armenian and Georgian.
_LISTED_LETTERS = (
    r"[\p{LC}&&[^\u0560-\u0588\u10C7-\u10FF\u1C80-\u1C8F\u2D00-\u2D2F\uA78F-\uAB6F\x{10500}-\x{10C7F}"
    r"\x{10D00}-\x{1189F}\x{118E0}-\x{1E8FF}]]"
)
_PATTERNS: dict[str, tuple[str, ...]] = {
    "qwen2": (_WORDS.replace("NUMBER", r"\p{N}"),),
    "llama-bpe": (_WORDS.replace("NUMBER", r"\p{N}{1,3}"),),
    "gpt-4o": (_CASED_WORDS.replace("END", CONTRACTIONS + "?").replace("NUMBER", r"\p{N}{1,3}"),),
    "tekken": (_CASED_WORDS.replace("END", "").replace("NUMBER", r"\p{N}"),),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_LISTED_LETTERS}+",
        r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3001\u3002]+",
        r"\s+\z",
        _CHINESE,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        + _SPACES,
    ),
}
ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "pixtral": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "megrez": "qwen2",
}
"""Other names in llama.cpp -> the same behaviour."""
WHOLE_WORDS = frozenset({"llama-bpe", "tekken"})
"""Where a word that is a token stays whole, whatever the merges say. These also begin a text with bos, unless the file
says otherwise."""


def pre_tokenizers_by_name() -> dict[str, pre_tokenizers.PreTokenizer]:
    """llama.cpp's pre-tokenizers that are supported here."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    single_digits = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return {
        "smollm": single_digits,
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        **{name: _split(patterns) for name, patterns in _PATTERNS.items()},
        "command-r": single_digits,
    }


def _split(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    """Each pattern cuts what the ones before it left; what it does not match is kept as well."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, letters])
