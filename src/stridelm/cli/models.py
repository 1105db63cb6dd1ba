"""`stridelm models`: what is on this machine."""

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stridelm.models.inventory import LocalModel


def models(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model, on one line.")] = False,
) -> None:
    """List the models on this machine, their size and where they are."""
    run(json=json)


def run(*, json: bool) -> None:
    from stridelm.models.inventory import local_models

    models = list(local_models())
    if json:
        for model in models:
            entry = {"name": model.name, "path": str(model.path), "bytes": model.bytes, "here": model.is_here}
            print(jsonlib.dumps(entry))
        return
    rows = [("model", "size", "where"), *((model.name, _size(model), str(model.path)) for model in models)]
    name_width, size_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, size, where in rows:
        print(f"{name:<{name_width}}  {size:<{size_width}}  {where}")


def _size(model: "LocalModel") -> str:
    return f"{model.bytes / 1e6:,.0f} MB" if model.is_here else "fetched at first use"
