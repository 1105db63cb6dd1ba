"""What 8B and 70B would take, served and converted: memory, tokens per second, cost per million tokens.

    python bench/scale/project.py                          # writes bench/results/scale.json; then `make tables`
    python bench/scale/project.py --price 2.5 --json mine.json

Projections, not measurements. Measured: what a step of so many rows costs on one H200 (scale/step_cost.py, random
weights), acceptance by depth of the 135M model's conversions (training/acceptance.py, training/objectives.py), and
the speed of its training (training/speed.py). Assumed: that a large model's drafts are accepted as often as the
small one's; the links between GPUs; the price of an hour. Decoding only: prompts and the scheduler are not counted.
"""

import json
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stridelm.settings import field_docs

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import BENCH, RESULTS, script_parser, write
from bench.scale.shapes import (
    HALF,
    WHOLE,
    Recipe,
    activations,
    adapter_parameters,
    adapter_training_bytes,
    full_training_bytes,
    kv_bytes,
    parameters,
    training_operations,
)
from bench.scale.step_cost import LARGE, MIDDLE, SMALL, Shape
from bench.scale.steps import Acceptance, Curve, Layout, Links, Plan, Setting, StepCosts, best

SHIPPED = BENCH.parent / "src" / "stridelm" / "adapters" / "smollm2" / "train.json"
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "8B": (Layout(),),
    "70B": (Layout(2), Layout(4), Layout(8), Layout(1, 2), Layout(8, 2)),
}
SHAPES = {"8B": MIDDLE, "70B": LARGE}
STEADY = 0.05
"""The width of a steady point's replays, nine tenths less one tenth, as a share of the median."""
STANDALONE = "full: online, hard, random k"
"""The whole conversion that drafts for itself in stock vLLM, measured on maths: no sequential head there."""
PUBLISHED = {
    "source": "arXiv 2602.06019, Llama-3.1-8B, GSM8K, every weight tuned; not exact",
    "k": 16,
    "points": [
        {"threshold": 0.99, "tokens_per_forward": 2.1, "accuracy": 66.0},
        {"threshold": 0.95, "tokens_per_forward": 2.8, "accuracy": 64.7},
        {"threshold": 0.9, "tokens_per_forward": 3.3, "accuracy": 64.1},
        {"threshold": 0.8, "tokens_per_forward": 4.2, "accuracy": 59.2},
        {"threshold": 0.7, "tokens_per_forward": 5.1, "accuracy": 55.0},
    ],
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is assumed."""

    price: float = 3.0
    """Of one GPU for an hour, in dollars."""
    gpu_bytes: float = 141e9
    """Memory of a GPU."""
    usable: float = 0.9
    """The share of it that weights and KV cache may take."""
    rank: int = 64
    """Of the adapters, for their size; what an adapter adds to a step is as measured."""
    masks: int = 8
    """Of a chain: the most drafts of a step."""
    sequential_size: int = 1024
    """State size of the sequential head."""
    head_milliseconds: float = 0.05
    """Of the sequential head per draft and step: a few small kernels, not measured."""
    links: Links = field(default_factory=Links)


class Estimate:
    def __init__(self, costs: StepCosts, acceptances: list[Acceptance], standalone: Acceptance, inputs: Inputs) -> None:
        self.costs, self.acceptances, self.standalone, self.inputs = costs, acceptances, standalone, inputs

    def memory(self, shape: Shape) -> dict[str, Any]:
        inputs = self.inputs
        adapter = adapter_parameters(shape, inputs.rank, inputs.masks, inputs.sequential_size)
        return {
            "parameters": parameters(shape), "weight_bytes": HALF * parameters(shape),
            "kv_bytes_per_token": kv_bytes(shape), "adapter_parameters": adapter, "adapter_bytes": HALF * adapter,
        }  # fmt: skip

    def room(self, shape: Shape, layout: Layout, context: int, *, models: int = 1) -> int:
        """Sequences of this length that fit on a replica, with the rows of the widest step."""
        memory, inputs = self.memory(shape), self.inputs
        held = models * memory["weight_bytes"] + memory["adapter_bytes"]
        free = layout.gpus * inputs.gpu_bytes * inputs.usable - held
        tokens = context + (inputs.masks + 1) ** 2
        return max(0, int(free // (models * memory["kv_bytes_per_token"] * tokens)))

    def setting(self, shape: Shape, layout: Layout, batch: int, context: int) -> Setting:
        def whole(adapted: bool) -> Curve:
            part = self.costs.curve(shape.name, layout.tensor, batch, context, adapted=adapted)
            return Curve({
                int(rows): part(rows) + layout.communication(
                    batch * int(rows), shape.layers, shape.hidden, shape.vocabulary, self.inputs.links
                )
                for rows in part.rows
            })  # fmt: skip

        return Setting(whole(False), whole(True), self.inputs.head_milliseconds, self.inputs.masks)

    def serving(self, shape: Shape, layout: Layout, context: int) -> list[dict[str, Any]]:
        """One entry for every batch that was measured and fits. A pipeline has one batch in every stage."""
        found: list[dict[str, Any]] = []
        for batch in self.costs.batches(shape.name, layout.tensor, context):
            users = batch * layout.pipeline
            if users > self.room(shape, layout, context):
                continue
            setting = self.setting(shape, layout, batch, context)
            plain = setting.plain()
            entry: dict[str, Any] = {
                "layout": layout.name, "gpus": layout.gpus, "context": context, "users": users,
                "plain": self.told(plain, plain, users, layout), "exact": {},
                "plugin": {},
            }  # fmt: skip
            for acceptance in self.acceptances:
                chosen = best(list(setting.exact(acceptance)))
                entry["exact"][acceptance.name] = self.told(chosen, plain, users, layout)
                if layout.gpus == 1:  # the plugin refuses more
                    chosen = best(list(setting.plugin(acceptance)))
                    entry["plugin"][acceptance.name] = self.told(chosen, plain, users, layout)
            # vLLM does not start a draft model with a pipeline.
            if layout.pipeline == 1 and users <= self.room(shape, layout, context, models=2):
                chosen = best(list(setting.two_models(self.standalone)))
                entry["two_models"] = self.told(chosen, plain, users, layout)
            if shape is MIDDLE:
                entry["published"] = self.published(setting, plain, users, layout)
            found.append(entry)
        return found

    def told(self, plan: Plan, plain: Plan, users: int, layout: Layout) -> dict[str, Any]:
        together = plan.pace * users
        return {
            "way": plan.way, "drafts": plan.drafts, "rows": plan.rows, "tokens": round(plan.tokens, 3),
            "milliseconds": round(plan.milliseconds, 3), "tokens_per_second_per_user": round(plan.pace, 2),
            "tokens_per_second_per_gpu": round(together / layout.gpus, 1),
            "dollars_per_million_tokens": round(self.dollars(together, layout.gpus), 4),
            "over_plain": round(plan.pace / plain.pace, 3),
        }  # fmt: skip

    def dollars(self, tokens_per_second: float, gpus: int) -> float:
        """Of a million tokens."""
        return self.inputs.price * gpus / 3600 / tokens_per_second * 1e6

    def published(self, setting: Setting, plain: Plan, users: int, layout: Layout) -> list[dict[str, Any]]:
        """Masks taken at their word, as published: a step reads what was accepted and k - 1 masks."""
        points = []
        for point in PUBLISHED["points"]:
            tokens = point["tokens_per_forward"]
            rows = tokens + PUBLISHED["k"] - 1
            plan = Plan("unverified", PUBLISHED["k"] - 1, round(rows), tokens, setting.bare(rows))
            points.append(point | self.told(plan, plain, users, layout))
        return points

    def training(self, shape: Shape, speed: dict[str, Any], shipped: dict[str, Any]) -> dict[str, Any]:
        """The shipped conversion's recipe at this size, at the arithmetic per second that the 135M model's training
        reached: a larger model's matrices keep a GPU busier, so this is the slow side."""
        inputs = self.inputs
        small = Recipe(*(speed[name] for name in ("texts", "length", "anchors", "k", "rank")), sequential_size=512)
        reached = training_operations(SMALL, small) * speed["steps_per_second"]
        without = adapter_training_bytes(SMALL, small, 0.0, tied=True)
        per_activation = (speed["memory_gb"] * 1e9 - without) / activations(SMALL, small.mask_rows)
        settings = shipped["settings"]
        recipe = Recipe(
            *(settings[name] for name in ("texts", "length", "anchors", "k")),
            rank=inputs.rank, sequential_size=inputs.sequential_size,
        )  # fmt: skip
        hours = settings["steps"] * training_operations(shape, recipe) / reached / 3600
        needed = adapter_training_bytes(shape, recipe, per_activation)
        one_text = adapter_training_bytes(shape, replace(recipe, texts=1), per_activation)
        adapter = adapter_parameters(shape, inputs.rank, inputs.masks, inputs.sequential_size)
        walls = {
            str(count): round(hours / count + settings["steps"] * self.summed(WHOLE * adapter, count) / 3600, 2)
            for count in (1, 8, 16)
        }
        layout = LAYOUTS[shape.name][0]
        fastest = max(entry["plain"]["tokens_per_second_per_gpu"] for entry in self.serving(shape, layout, 2048))
        rollouts = shipped["data"]["answer_tokens"] / fastest / 3600
        return {
            "steps": settings["steps"], "texts": recipe.texts, "length": recipe.length, "masks": recipe.mask_rows,
            "operations_per_second": reached, "gpu_hours": round(hours, 2), "rollout_gpu_hours": round(rollouts, 2),
            "hours_by_gpus": walls,
            "dollars": round(inputs.price * (hours + rollouts), 2), "bytes": round(needed),
            "bytes_one_text": round(one_text), "fits_one_gpu": needed <= inputs.gpu_bytes,
            "one_text_fits_one_gpu": one_text <= inputs.gpu_bytes,
            "full_bytes_per_process": {
                str(count): round(full_training_bytes(shape, count)) for count in (8, 16, 64)
            },
        }  # fmt: skip

    def summed(self, size: float, count: int) -> float:
        """Seconds in which so many GPUs, eight a machine, sum gradients of this size; not hidden behind anything."""
        links = self.inputs.links
        near = count <= 8
        pace = links.node_bytes_per_second if near else links.network_bytes_per_second
        return 2 * (count - 1) / count * size / pace + (links.node_latency if near else links.network_latency)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def acceptance_of(name: str, entry: dict[str, Any]) -> Acceptance:
    return Acceptance(name, tuple(entry["acceptance_by_depth"]), entry["tokens_per_forward"])


def report(step_costs: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    measured = read(RESULTS / "acceptance.json")
    names = {"held-out GSM8K train questions": "maths", "own prompts of twelve kinds": "twelve kinds"}
    acceptances = [acceptance_of(short, measured[name]) for name, short in names.items()]
    standalone = acceptance_of(STANDALONE, read(RESULTS / "objectives.json")[STANDALONE]["verified"])
    costs = StepCosts(step_costs)
    estimate = Estimate(costs, acceptances, standalone, inputs)
    models: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        serving = [
            entry
            for layout in LAYOUTS[name]
            for context in (2048, 512)
            for entry in estimate.serving(shape, layout, context)
        ]
        rooms = {layout.name: estimate.room(shape, layout, 2048) for layout in LAYOUTS[name]}
        models[name] = {
            "memory": estimate.memory(shape) | {"sequences_of_2048": rooms},
            "serving": serving,
            "training": estimate.training(shape, read(RESULTS / "train-speed-h200.json"), read(SHIPPED)),
        }
    points = [point for group in step_costs["groups"] for point in group["points"]]
    steady = sum(point["high"] - point["low"] <= STEADY * point["milliseconds"] for point in points)
    about = ("machine", "torch", "cuda", "dtype", "commit", "replays", "seconds", "complete", "left_out")
    return {
        "projection": True,
        "inputs": asdict(inputs),
        "step_costs": {name: step_costs[name] for name in about}
        | {"points": len(points), "steady": STEADY, "steady_points": steady, "curves": curves(step_costs)},
        "acceptance": [asdict(each) for each in (*acceptances, standalone)],
        "published": PUBLISHED,
        "models": models,
    }


def curves(step_costs: dict[str, Any]) -> list[dict[str, Any]]:
    """The measured points of whole models and of what 70B is drawn from, for the table."""
    costs, found = StepCosts(step_costs), []
    for name, ranks in (("135M", 1), ("8B", 1), ("70B", 1), ("70B", 2), ("70B", 4), ("70B", 8)):
        for batch in costs.batches(name, ranks, 2048):
            curve = costs.curve(name, ranks, batch, 2048)
            points = {str(int(rows)): round(curve(rows), 2) for rows in curve.rows}
            found.append({"model": name, "ranks": ranks, "batch": batch, "context": 2048, "milliseconds": points})
    return found


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "scale.json")
    parser.add_argument("--step-costs", type=Path, default=RESULTS / "step_cost_h200.json")
    for kind in (Inputs, Links):
        docs = field_docs(kind)
        for each in fields(kind):
            if each.name != "links":
                flag = f"--{each.name.replace('_', '-')}"
                told = f"{docs[each.name]} (default {each.default:g})"
                parser.add_argument(flag, type=type(each.default), default=each.default, help=told)
    options = vars(parser.parse_args())
    links = Links(**{each.name: options[each.name] for each in fields(Links)})
    named = {each.name: options[each.name] for each in fields(Inputs) if each.name != "links"}
    made = report(read(options["step_costs"]), Inputs(**named, links=links))
    write(options["json"], made)


if __name__ == "__main__":
    main()
