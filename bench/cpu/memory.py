"""Peak resident memory of the built-in model with a context of about 2,000 tokens, loading included.

python bench/cpu/memory.py [--context 2048]
"""

import resource
import sys
from pathlib import Path

from stridelm import LoadSettings, SamplingParams, load

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, write

ANSWER = 64


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--context", type=int, default=2048, help="prompt and answer together")
    options = parser.parse_args()
    model = load(settings=LoadSettings(device="cpu", threads=2))
    words = 1000
    tokens = len(model.encode("lighthouse " * words, raw=True))
    prompt = "lighthouse " * ((options.context - ANSWER) * words // tokens)
    banned = dict.fromkeys(model.target.eos_ids, float("-inf"))
    result = model.generate(prompt, SamplingParams(max_tokens=ANSWER, logit_bias=banned), raw=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # kept in KiB
    print(f"{result.stats.prompt_tokens} + {result.stats.tokens} tokens, peak resident size {peak:.0f} MB")
    figures = {"prompt_tokens": result.stats.prompt_tokens, "tokens": result.stats.tokens, "peak_mb": round(peak)}
    write(options.json, figures)


if __name__ == "__main__":
    main()
