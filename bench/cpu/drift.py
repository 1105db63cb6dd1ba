"""How far the native backend is from float32: the built-in model's own 4-bit weights, and its weights quantised anew.

    python bench/cpu/drift.py [--json FILE]

What is printed was measured when the model was packed (model/native/drift.py): on one text of some hundred tokens.
"""

import sys
from pathlib import Path

from stridelm import LoadSettings, load
from stridelm.backends.native.load import NativeTarget

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import script_parser, write


def main() -> None:
    parser = script_parser(__doc__)
    options = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name, quantize in (("its own (Q4_1, Q8_0)", None), ("q8", "q8"), ("q4", "q4")):
        target = load(adapter="none", settings=LoadSettings(backend="native", quantize=quantize)).target
        assert isinstance(target, NativeTarget)
        figures[name] = target.packed.notes["drift"]
        print(name, figures[name])
    write(options.json, figures)


if __name__ == "__main__":
    main()
