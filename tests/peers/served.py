"""What the suites' shims start: `stridelm serve`, with the built-in model or a tiny one."""

import json
import sys
from pathlib import Path

import stridelm
from stridelm.models.builtin import ensure_builtin

_FILL_IN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def serve_command(model: str, scratch: Path) -> dict[str, str]:
    """The environment that tells a shim how to start our server, and where the model's tokenizer is."""
    folder = save_tiny_with_infill(scratch / "model") if model == "tiny" else Path(ensure_builtin())
    source = Path(stridelm.__file__).parents[1]
    command = ["env", f"PYTHONPATH={source}", sys.executable, "-m", "stridelm", "serve", "--device", "cpu"]
    # The built-in model by its name: its folder alone is not converted.
    command += ["--model", str(folder) if model == "tiny" else model]
    return {"PEERS_SERVE": json.dumps(command), "PEERS_MODEL": str(folder)}


def save_tiny_with_infill(folder: Path) -> Path:
    """Random weights whose tokenizer has the tokens that mark what is before and behind a gap."""
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))  # as pytest has it
    from tiny import byte_tokenizer, save_tiny

    save_tiny(folder, vocab_size=264, max_position_embeddings=2048)
    byte_tokenizer(extra=_FILL_IN).save_pretrained(folder)
    return folder
