"""`stridelm models`: what is on this machine."""

import json as jsonlib

from rich.console import Console
from rich.table import Table

from stridelm.model.store import stored_models


def run(*, json: bool) -> None:
    models = list(stored_models())
    if json:
        for model in models:
            print(jsonlib.dumps({"name": model.name, "path": str(model.path), "bytes": model.bytes, "here": model.is_here}))
        return
    table = Table("model", "size", "where", box=None, pad_edge=False)
    for model in models:
        size = f"{model.bytes / 1e6:,.0f} MB" if model.is_here else "fetched at first use"
        table.add_row(model.name, size, str(model.path))
    Console(soft_wrap=True, highlight=False).print(table)
