"""`stridelm export`: its options; `export/run.py` does the work."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stridelm.cli.options import Model
from stridelm.settings import DEFAULT_MODEL, ModelChoice


class ExportFormat(StrEnum):
    """Formats of other engines."""

    HF = "hf"
    VLLM = "vllm"
    GGUF = "gguf"
    PEFT = "peft"


class ExportStorage(StrEnum):
    """How a GGUF file stores its weights."""

    EXACT = "exact"
    Q8_0 = "q8_0"


class ExportPart(StrEnum):
    """Which part of a model is exported."""

    MODEL = "model"
    DRAFT = "draft"


def export(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="What to make; it must not be there yet.")],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to",
            help="hf: a Hugging Face folder, for transformers; vllm: folders for vLLM; gguf: a file for llama.cpp; "
            "peft: the conversion as a LoRA for drafts, for SGLang's UNO.",
        ),
    ],
    part: Annotated[
        ExportPart,
        typer.Option(
            "--part",
            help="model: the model with its conversion (--to gguf: the model alone, or merged with --adapter); draft: "
            "its draft model, --to hf or gguf.",
        ),
    ] = ExportPart.MODEL,
    model: Model = DEFAULT_MODEL,
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter",
            help="The conversion: a folder that `stridelm train` made for the model; default: the built-in model's "
            "own, or the masks that the model itself names; with --to gguf none, and one without a gate only.",
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            help="With --part draft: a folder that `stridelm train --mode draft` made for the model; default: the "
            "built-in model's own.",
        ),
    ] = None,
    storage: Annotated[
        ExportStorage | None,
        typer.Option(
            "--storage",
            help="With --to gguf: exact, which loses nothing and is the default, or q8_0, rounded to 8 bits.",
        ),
    ] = None,
) -> None:
    """Hand a model over to other engines: docs/engines.md says what each can take, and what it is worth there.

    \b
    stridelm export --model smollm2 --to hf smollm2-hf
    stridelm export --model smollm2 --to vllm smollm2-vllm
    stridelm export --model Qwen/Qwen3-4B --adapter runs/qwen --to hf qwen-hf
    stridelm export --model Qwen/Qwen3-4B --part draft --draft-model runs/draft --to hf qwen-draft
    stridelm export --model smollm2 --part draft --to gguf draft.gguf
    stridelm export --model smollm2 --to peft smollm2-lora
    """
    from stridelm.export import run as exporting

    choice = ModelChoice(model, adapter, draft_model)
    exporting.run(exporting.ExportOptions(path, to.value, part.value, choice, storage.value if storage else None))
