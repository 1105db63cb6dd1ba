"""Write the token ids that real llama.cpp gives for two fixed lists of strings.

The results are the reference that our own tokenizers, built from the metadata of GGUF files, are tested against.
llama.cpp itself comes prebuilt from npm:

    npm install @node-llama-cpp/linux-x64@3.22.1
    python make_llama_cpp_ids.py \\
        --lib-dir node_modules/@node-llama-cpp/linux-x64/bins/linux-x64 \\
        --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out-dir tests/data

``llama_cpp_ids.json`` is about the vocabulary of that file. For each pre-tokenizer a temporary GGUF is written that
holds the metadata only, with ``tokenizer.ggml.pre`` replaced, and llama.cpp loads its vocabulary.

What these ids cannot show: in SmolLM2's vocabulary an ASCII digit is only ever a token by itself, and each longer token
is the result of a merge. So "qwen2" and "llama-bpe" (digits one by one or up to three together, ignore_merges) give
equal ids for every case. ``llama_cpp_synthetic_ids.json`` shows it: its small vocabulary, which it holds, was trained
without pre-tokenization on the very texts, so that every boundary that a pre-tokenizer draws is seen in the ids.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PRE_NAMES = ["smollm", "gpt-2", "qwen2", "llama-bpe", "default"]
SYNTHETIC_PRE_NAMES = [
    *PRE_NAMES[:-1],
    *("gpt-4o", "tekken", "deepseek-llm", "deepseek-coder", "deepseek-v3", "command-r"),
]
ALIASES = {
    "llama-bpe": ["llama3", "llama-v3", "falcon3", "pixtral"],
    "qwen2": ["deepseek-r1-qwen", "megrez"],
}
"""Names for which llama.cpp must give the same ids: recorded once, compared here."""

CHATML = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWhat is 12 + 30? Answer in one word.<|im_end|>\n"
    "<|im_start|>assistant\nForty-two.<|im_end|>\n<|im_start|>user\nThanks!<|im_end|>\n"
    "<|im_start|>assistant\n"
)

LONG = (
    "In 1969, Apollo 11's lunar module touched down on the Moon; about 600 million people "
    'watched. "That\'s one small step for [a] man," Armstrong said, "one giant leap for '
    "mankind.\"  The crew - Neil A. Armstrong, Michael Collins and Edwin E. 'Buzz' Aldrin - "
    "returned on July 24th, 8 days, 3 hours & 18 minutes after launch.\n\nThey'd carried "
    "21.55 kg of rocks (47.5 lb)...\n\n  * basalts\n  * breccias\n\tand fine dust.\n"
)

PYTHON = (
    "def fib(n: int) -> int:\n    if n < 2:\n        return n\n"
    '    return fib(n-1) + fib(n - 2)  # slow!\n\n\nprint(f"{fib(10)=}")\n'
)
C_CODE = (
    '#include <stdio.h>\n\nint main(void)\n{\n\tfor (int i=0;i<10;++i)\n\t\tprintf("%d\\n", i*0x1F);\n\treturn 0;\n}\n'
)

PLAIN_TEXTS = [
    "",
    "Hello world",
    "Hello, world! How are you?",
    "The quick brown fox jumps over the lazy dog.",
    # digits
    "1234567",
    "3.14159",
    "\n\n1.",
    "2024-10-31",
    "a1b2",
    " 42",
    "in 1999 and 2001",
    "1,000,000.00",
    "0x7fff 1e-10",
    "12 345 6789",
    "abc123def456",
    "COVID19 mp3s 4x4 H2O",
    "10th 21st 1990s",
    # whitespace
    " ",
    "  ",
    "     ",
    "\n",
    "\n\n\n\n\n\n\n",
    "\t",
    "\t\tx\t\ty",
    "   leading",
    "trailing   ",
    "a  b   c    d",
    "line\r\nline\r\n\r\nend",
    "a\rb",
    "a \n b\n \nc \n",
    "  \n\n  x",
    "\n \n\t \n1",
    "a\u00a0b \u00a0 c",
    "a\u3000b\u2003c\u2028d\u0085e",
    "a\u200bb\ufeffc",
    "1 \n 2  3\n\n\n4",
    # punctuation and contractions
    "...!!!???",
    "\"quoted\" 'single' `tick`",
    "a-b_c/d\\e|f~g^h",
    "(x) [y] {z} <w>",
    "Hi!\n\nBye.\r\n",
    "$5.00 + 10% = #1 @home & *star*",
    "\u2014dash\u2013dash\u2026 \u201cquotes\u201d \u2018single\u2019",
    "I'm don't we'll they've you're he'd it's",
    "I'M DON'T WE'LL THEY'VE YOU'RE HE'D IT'S",
    "I\u2019m don\u2019t",
    "'sword 'twas 'tis ''s",
    "x'\u017f y'lL",
    # code
    PYTHON,
    C_CODE,
    '{"key": [1, 2.5, -3e10, null, true], "nested": {"a\\n": "b"}}',
    "SELECT * FROM t WHERE id>=100;",
    '<div class="a">&nbsp;</div>',
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case",
    # unicode
    "caf\u00e9 na\u00efve \u00dcbergr\u00f6\u00dfe \u0141\u00f3d\u017a",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "z\u0351\u036b\u0343a\u0308\u0332lgo",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2024\u5e7410\u670831\u65e5\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    (
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c "
        "\u0643\u064e\u062a\u064e\u0628\u064e"
    ),
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd \u0b89\u0bb2\u0b95\u0bae\u0bcd",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    (
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! "
        "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u05e9\u05dc\u05d5\u05dd"
    ),
    (
        "\U0001f600\U0001f44b\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 "
        "\u2764\ufe0f \U0001f1eb\U0001f1f7"
    ),
    "ok\U0001f44d\U0001f3ffgo 3\ufe0f\u20e3",
    "x\u00b2 + y\u00b3 = z\u2074, H\u2082O, \u00bd cup, \u2167 \u2460",
    "\uff11\uff12\uff13 \uff21\uff22\uff23",
    "\u0661\u0662\u0663\u0664 \u06f1\u06f2 \u0967\u0968\u0969",
    "\u1ed9 o\u0323\u0302 \u212b \ufb01",
    "\U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8 \U0001d7d8\U0001d7d9",
    "\u00b5\u00aa\u00ba \u01c5 \u02b0",
    # control characters
    "a\x00b\x01c\x07d\x1be\x7ff",
    "x\x0by\x0cz\x1c\x1d\x1e\x1fw",
    "\u0080\u009f\u00ad\u200e\ufffd\ue000\U0010ffff",
    # 0x04, 0x06 and 0x1d are among the 21 bytes that have no token: llama.cpp drops them
    # after merging, so that they still keep their neighbours apart
    "!\x04! --\x06-- .\x1d.",
    # math, addresses
    "\u222b\u2080^\u221e e^{-x\u00b2} dx = \u221a\u03c0/2 \u2248 0.886",
    "f(x)=ax^2+bx+c, x\u2081\u22602",
    "https://example.com:8080/a/b?q=1&r=%20#frag",
    "user.name+tag@mail.example.org, 192.168.0.1, ::1",
    "C:\\Users\\me\\file.txt ~/x.tar.gz",
    LONG,
]

SPECIAL_TEXTS = [
    "<|im_start|>user\nHi<|im_end|>\n",
    "a <|im_start|> b<|endoftext|>c  <|im_end|>  ",
    "<|im_start|><|im_start|>1<|im_end|>2\n\n<|im_end|>",
    "<|im_start |> <|im_end| <repo_name>x<file_sep>y",
    CHATML,
]

CASES: list[tuple[str, bool]] = [
    *((text, True) for text in PLAIN_TEXTS),
    *((text, flag) for text in SPECIAL_TEXTS for flag in (True, False)),
]

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
SYNTHETIC_SPECIAL = {"<eos>": CONTROL, "<tool>": USER_DEFINED}
# Tokens that no merge makes: only a tokenizer that looks for the whole word first (ignore_merges) finds them.
SYNTHETIC_UNREACHABLE = ["789", "\u0120789", "xyz", "\u0120xyz", "??"]

SYNTHETIC_TRAINING_TEXTS = [
    # digits, alone and beside other things
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "123456",
    "1234567",
    "99999",
    " 12",
    "  1234",
    "a12b",
    "x 100 2000",
    "3.14",
    "$123",
    "1a",
    "\t1",
    "\n1",
    "\n\n1.",
    "2\u00b2\u00b34",  # superscripts are numbers, but no decimal digits
    "\uff11\uff12\uff13\uff14",
    "\u0663\u0664\u0665\u0666",
    "\u00bd\u00bd",
    # contractions, in both cases, and letters that fold to s and k without being them
    "it's",
    "IT'S",
    "we'll",
    "WE'LL",
    "'LlX",
    "'twas",
    "'\u017fa",
    "'\u212a",
    # what a word takes with it
    " the",
    "\tthe",
    "(the",
    "\nthe",
    " (the)",
    "the,the",
    "e\u0301t\u00e9",
    "\u4e2d\u6587,",
    # punctuation and the line breaks after it
    "!!",
    " !!",
    "!!\n\n",
    "!!\r\n x",
    ". .",
    "_a_",
    # white space
    "   ",
    "a   b",
    "a \n b",
    "\n\n\n",
    " \n \n",
    "\r\n\r\n",
    "a\u00a0b",
    # where a word's case changes
    "camelCase",
    "ABCdef",
    "XmlHTTPRequest",
    "\u00c4B\u00f6c",
    "\u0416\u0438\u0416",
    "aB's",
    "Don'TX",
    " HELLOworld",
    # marks, and letters without case
    "a\u0301B\u0301c",
    "\u0915\u094d\u0937a",
    "\u01bba\u01c5b",
    "\u10d0\u10d1a",
    # scripts beside each other
    "a\u4e2db",
    "\u4e2d\u3042\u30ab\uac00",
    "\u4e2d \u6587",
    "\u3042 a",
    "\uac00\ub098 1",
    "\u0e44\u0e17\u0e22a",
    "\u2003\u4e2d",
    "\u3000\u4e2d\u3001\u3002",
    # punctuation before letters, symbols, and slashes
    "#define",
    "@user_name",
    "a/b//\n",
    "?/\n/",
    "=>x",
    " ==",
    "$x$",
    "\u20ac5\u2192\u2192a",
    "\uff01\uff0fa\u2018b\u2019",
    "\u201cq\u201d!",
    "\U0001f600\U0001f600a",
    "a\u200db",
    "\u0085a",
    "\x0b\x0c a",
    "\x00\x01a",
]
SYNTHETIC_CASES: list[tuple[str, bool]] = [
    *((text, True) for text in SYNTHETIC_TRAINING_TEXTS),
    *((text, True) for text in ("789", " 789", "789789", "xyz", " xyz", "xyzxyz", "???", "??", "x\n\n  \n 12345 y")),
    *((text, flag) for text in ("a<eos>12345", "<tool>123<eos><tool>", "<eos") for flag in (True, False)),
]


class ModelParams(ctypes.Structure):
    """``struct llama_model_params``, opaque and larger than the real one (80 bytes).

    It is passed and returned in memory, so the spare bytes at the end do no harm.
    """

    _fields_ = [("raw", ctypes.c_ubyte * 1024)]


# The six booleans that end llama_model_params in the llama.cpp build above, as
# llama_model_default_params sets them; the first one is vocab_only.
FLAGS_OFFSET = 72
FLAGS_DEFAULT = bytes([0, 0, 1, 0, 0, 0])

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class LlamaCpp:
    """The few functions of libllama that tokenizing needs, through ctypes."""

    def __init__(self, lib_dir: Path) -> None:
        # The libraries find each other through their RUNPATH ($ORIGIN). No compute
        # backend is loaded: llama.cpp asks for none when it reads only the vocabulary.
        (self.path,) = (p for p in lib_dir.glob("libllama.*so") if "common" not in p.name)
        lib = ctypes.CDLL(str(self.path.resolve()))
        lib.llama_log_set.argtypes = [LOG_CALLBACK, ctypes.c_void_p]
        lib.llama_log_set.restype = None
        lib.llama_backend_init.argtypes = []
        lib.llama_backend_init.restype = None
        lib.llama_model_default_params.argtypes = []
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        lib.llama_model_load_from_file.restype = ctypes.c_void_p
        lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_model_free.argtypes = [ctypes.c_void_p]
        lib.llama_model_free.restype = None
        lib.llama_tokenize.argtypes = [
            ctypes.c_void_p,  # vocab
            ctypes.c_char_p,  # text
            ctypes.c_int32,  # its length in bytes
            ctypes.POINTER(ctypes.c_int32),  # ids out
            ctypes.c_int32,  # room for that many
            ctypes.c_bool,  # add_special
            ctypes.c_bool,  # parse_special
        ]
        lib.llama_tokenize.restype = ctypes.c_int32
        self._lib = lib
        self.log: list[str] = []
        self._log_callback = LOG_CALLBACK(self._on_log)  # must outlive the library's use
        lib.llama_log_set(self._log_callback, None)
        lib.llama_backend_init()

    def _on_log(self, _level: int, text: bytes, _user_data: int | None) -> None:
        self.log.append(text.decode("utf-8", "replace"))

    @contextmanager
    def vocab(self, gguf: Path) -> Iterator[int]:
        """Load only the vocabulary of a GGUF file; yield llama.cpp's pointer to it."""
        params = self._lib.llama_model_default_params()
        flags = bytes(params.raw[FLAGS_OFFSET : FLAGS_OFFSET + len(FLAGS_DEFAULT)])
        if flags != FLAGS_DEFAULT:
            raise RuntimeError(f"{self.path.name}: llama_model_params has another layout")
        params.raw[FLAGS_OFFSET] = True
        self.log.clear()
        model = self._lib.llama_model_load_from_file(str(gguf).encode(), params)
        if not model:
            raise RuntimeError("llama.cpp could not load the file:\n" + "".join(self.log))
        try:
            yield self._lib.llama_model_get_vocab(model)
        finally:
            self._lib.llama_model_free(model)

    def tokenize(self, vocab: int, text: str, parse_special: bool, *, add_special: bool = False) -> list[int]:
        data = text.encode("utf-8")
        room = len(data) + 3
        ids = (ctypes.c_int32 * room)()
        count = self._lib.llama_tokenize(vocab, data, len(data), ids, room, add_special, parse_special)
        if count < 0:
            raise RuntimeError(f"llama_tokenize wants room for {-count} ids of {text!r}")
        return list(ids[:count])


def write_vocab_gguf(source: GGUFReader, pre: str, path: Path) -> None:
    """Copy the metadata of a GGUF file, without tensors, with another pre-tokenizer."""
    writer = GGUFWriter(path, arch=source.fields["general.architecture"].contents())
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer makes these itself
        value = pre if name == "tokenizer.ggml.pre" else field.contents()
        item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], item_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def train_synthetic() -> tuple[list[str], list[str]]:
    """The tokens and merges of a vocabulary in which every training text is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SYNTHETIC_SPECIAL),
    )
    tokenizer.train_from_iterator(SYNTHETIC_TRAINING_TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    clash = set(SYNTHETIC_UNREACHABLE).intersection(tokens)
    if clash:
        raise RuntimeError(f"the training texts make {clash}, which no merge should")
    return tokens + SYNTHETIC_UNREACHABLE, [" ".join(merge) for merge in model["merges"]]


def write_synthetic_gguf(tokens: list[str], merges: list[str], pre: str, path: Path) -> None:
    writer = GGUFWriter(path, arch="llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([SYNTHETIC_SPECIAL.get(token, NORMAL) for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<eos>"))
    writer.add_eos_token_id(tokens.index("<eos>"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def describe_library(lib_path: Path) -> str:
    """Name the npm package the library came from (its package.json is some folders up)."""
    for folder in lib_path.resolve().parents:
        manifest = folder / "package.json"
        if manifest.is_file():
            package = json.loads(manifest.read_text())
            return f"{package['name']}@{package['version']}, {lib_path.name}"
    return lib_path.name


def format_json(result: dict[str, Any]) -> str:
    """JSON with one case a line, ASCII only, so that odd characters stay visible."""
    head = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in result.items() if k != "cases"]
    groups = []
    for pre, cases in result["cases"].items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        groups.append(f"{json.dumps(pre)}: [\n{lines}\n]")
    return "{\n" + ",\n".join([*head, '"cases": {\n' + ",\n".join(groups) + "\n}"]) + "\n}\n"


Case = dict[str, Any]


def ids_of_cases(
    llama: LlamaCpp, write: Callable[[str, Path], None], pre_names: list[str], cases: list[tuple[str, bool]]
) -> dict[str, list[Case]]:
    """llama.cpp's ids by pre-tokenizer; `write` makes the GGUF file for one."""
    found: dict[str, list[Case]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in pre_names:
            path = Path(folder) / f"{pre}.gguf"
            write(pre, path)
            with llama.vocab(path) as vocab:
                found[pre] = [
                    {"text": text, "parse_special": flag, "ids": llama.tokenize(vocab, text, flag)}
                    for text, flag in cases
                ]
            warnings = [line for line in llama.log if "pre-tokenizer" in line]
            print(pre, len(found[pre]), "cases", *warnings, file=sys.stderr)
    return found


def smollm2_ids(llama: LlamaCpp, gguf: Path) -> dict[str, Any]:
    source = GGUFReader(gguf)
    return {
        "library": describe_library(llama.path),
        "gguf": gguf.name,
        "gguf_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "cases": ids_of_cases(llama, lambda pre, path: write_vocab_gguf(source, pre, path), PRE_NAMES, CASES),
    }


def synthetic_ids(llama: LlamaCpp) -> dict[str, Any]:
    tokens, merges = train_synthetic()

    def recorded(names: list[str]) -> dict[str, list[Case]]:
        return ids_of_cases(
            llama, lambda pre, path: write_synthetic_gguf(tokens, merges, pre, path), names, SYNTHETIC_CASES
        )

    cases = recorded(SYNTHETIC_PRE_NAMES)
    for name, aliases in ALIASES.items():
        for alias, found in recorded(aliases).items():
            if found != cases[name]:
                raise RuntimeError(f"{alias} gives other ids than {name}")
    return {
        "library": describe_library(llama.path),
        "token_type": [SYNTHETIC_SPECIAL.get(token, NORMAL) for token in tokens],
        "tokens": tokens,
        "merges": merges,
        "cases": cases,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lib-dir", type=Path, required=True, help="folder of libllama.*.so")
    parser.add_argument("--gguf", type=Path, help="GGUF with a BPE vocabulary; without it only the synthetic ids")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder to write the JSON files to")
    args = parser.parse_args()

    llama = LlamaCpp(args.lib_dir)
    results = {"llama_cpp_synthetic_ids.json": synthetic_ids(llama)}
    if args.gguf:
        results["llama_cpp_ids.json"] = smollm2_ids(llama, args.gguf)
    for name, result in results.items():
        (args.out_dir / name).write_text(format_json(result), encoding="ascii")


if __name__ == "__main__":
    main()
