"""The C interface of the kernels (forward.cpp), bound by ctypes: a build that the wheel brought (prebuilt.py), or one
compiled for this machine. The structures are those of model.h, key_values.h, products.h, draws.h, grow.h, mask_chain.h,
worth.h, prior.h, step_text.h, steps.h and forward.cpp."""

import ctypes
import platform
from collections.abc import Iterable
from ctypes import POINTER, c_double, c_float, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from stridelm.backends.common.compiler import CannotCompile, check_processor, compiled
from stridelm.backends.common.processor import processor_entry
from stridelm.backends.native.prebuilt import find_prebuilt

NEEDED = {"x86_64": ("avx2", "fma", "f16c"), "aarch64": ("asimd", "asimddp")}
SOURCE = Path(__file__).with_name("forward.cpp")
# Contraction is off: a product and a sum are fused only where the source says so, so that every tile rounds alike.
_ALL_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC")


def flags_for(target: Iterable[str]) -> tuple[str, ...]:
    """For a processor that these flags name."""
    return *_ALL_FLAGS, *target


AVX2_FLAGS = flags_for([f"-m{name}" for name in NEEDED["x86_64"]])
"""For an x86 processor that has what is needed and nothing beyond: to see here what such a one computes."""
NEON_FLAGS = flags_for(["-march=armv8.2-a+dotprod"])
"""For every ARM processor, whatever it has beyond: what is tested under emulation is what runs."""
FLAGS = NEON_FLAGS if platform.machine() == "aarch64" else flags_for(["-march=native"])
LINK_FLAGS = ("-pthread",)


class Matrix(ctypes.Structure):
    """Weights in panels, as tiles.h describes them."""

    _fields_ = (("weights", c_void_p), ("panels", c_int64), ("groups", c_int64), ("kind", c_int64))


class JoinedMatrix(ctypes.Structure):
    """Matrices with the same input, of several kinds."""

    _fields_ = (("part", Matrix * 3), ("panels", c_int64))


class Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "width", "heads", "key_heads", "head_size", "inner", "window")),
        ("threads", c_int64),
        ("activations", c_int64),
        ("epsilon", c_float),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        ("query_key_value", JoinedMatrix),
        *((name, Matrix) for name in ("attention_output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "bias", "query_norm", "key_norm")),
    )


class Part(ctypes.Structure):
    _fields_ = (("up", Matrix), ("first", c_int64), ("step", c_int64))


class LowRank(ctypes.Structure):
    _fields_ = (("down", Matrix), ("parts", c_int64), ("part", Part * 3))


class Adapter(ctypes.Structure):
    _fields_ = tuple((name, LowRank) for name in ("query_key_value", "attention_output", "gate_up", "down"))


class Model(ctypes.Structure):
    _fields_ = (
        ("shape", Shape),
        ("layers", POINTER(Layer)),
        ("adapters", POINTER(Adapter)),
        ("embedding", Matrix),
        ("head", Matrix),
        ("vocabulary", c_int64),
        ("last_norm", c_void_p),
        ("frequencies", c_void_p),
    )


class Sequential(ctypes.Structure):
    _fields_ = (("read", Matrix), ("write", Matrix), ("bias", c_void_p), ("size", c_int64))


class DrawRules(ctypes.Structure):
    _fields_ = (
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
        ("top_k", c_int64),
        ("key", c_uint64),
    )


class Chain(ctypes.Structure):
    _fields_ = (("depth", c_int64), ("outputs", c_void_p), ("state", c_void_p))


class LogitRows(ctypes.Structure):
    _fields_ = (("logits", c_void_p), *((name, c_int64) for name in ("vocabulary", "stride", "candidates")))


BIASES = (("biased_count", c_int64), ("biased", c_void_p), ("biases", c_void_p))


class GrowthRules(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("before", "position", "branches")),
        ("floor", c_double),
        ("draws", DrawRules),
        *BIASES,
        *(("end_count", c_int64), ("ends", c_void_p)),
    )


class Grown(ctypes.Structure):
    _fields_ = tuple(
        (name, c_void_p) for name in ("nodes", "buds", "tokens", "parents", "scores", "bud_nodes", "states")
    )


class Cache(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        ("blocks", c_int64),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "real", "sequences", "wanted", "scored", "reads")),
        *((name, c_void_p) for name in ("ids", "masks", "positions", "sequence", "place", "parent", "starts")),
        *((name, c_void_p) for name in ("blocks", "tables", "wanted_rows", "scored_rows", "read_layers")),
        *((name, c_void_p) for name in ("logits", "log_sums", "hidden", "read")),
    )


class MaskParts(ctypes.Structure):
    _fields_ = (
        *(("masks", c_int64), ("embedding", c_void_p), ("tail", c_int64), ("tail_size", c_int64)),
        *(("tail_up", c_void_p), ("tail_down", c_void_p), ("head", Sequential)),
    )


class Costs(ctypes.Structure):
    _fields_ = (
        *(("table", c_void_p), ("largest", c_int64)),
        *((name, c_double) for name in ("masks", "mask_row", "context", "sequence", "head", "head_row", "level")),
        *((name, c_double) for name in ("around", "tending")),
    )


PRIOR_SIZES = {"scored": 5, "unscored": 4, "found": 3, "agreed": 3, "chain_against": 3, "found_against": 3}


class Prior(ctypes.Structure):
    _fields_ = (("ease", c_double), *((name, c_double * size) for name, size in PRIOR_SIZES.items()))


class PlanRules(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("masks", "nodes", "branches", "look_up", "follow")),
        ("costs", Costs),
        ("prior", Prior * 2),
    )


class TextStart(ctypes.Structure):
    _fields_ = (
        *(
            (name, c_int64)
            for name in (
                *("cached", "room", "length", "prompt_length", "block_count", "prediction_length"),
                "alternatives",
            )
        ),
        *((name, c_void_p) for name in ("tokens", "blocks", "prediction")),
        *BIASES,
        *(("draws", DrawRules), ("plan", PlanRules)),
    )


class Sheets(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("integers", "probabilities")),
        ("integer", c_void_p),
        ("probability", c_void_p),
    )


class PlanQuestion(ctypes.Structure):
    _fields_ = (
        *((name, c_double) for name in ("rate", "masks", "mask_row")),
        *((name, c_int64) for name in ("pending", "option_count", "left_count")),
        *((name, c_void_p) for name in ("seconds", "left", "fresh", "options")),
    )


_FILLED_IN = (Model, Cache, Step, MaskParts, TextStart, Sheets, GrowthRules, Grown, PlanQuestion)


@cache
def library() -> Any:
    """The compiled kernels. Raises CannotCompile if there are none for this processor and they cannot be compiled."""
    check_processor(NEEDED)
    return bind(find_prebuilt(processor_entry("flags")) or compiled(SOURCE, FLAGS, LINK_FLAGS))


def bind(made: Path) -> Any:
    try:
        bound = ctypes.CDLL(str(made))
    except OSError as error:
        raise CannotCompile(str(error)) from error
    sizes = (c_int64 * len(_FILLED_IN))()
    bound.stride_sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(each) for each in _FILLED_IN], "a structure differs between C++ and here"
    bound.stride_lanes.restype = c_int64
    bound.stride_workspace.restype = c_void_p
    bound.stride_free_workspace.argtypes = [c_void_p]
    bound.stride_forward.argtypes = [POINTER(Model), POINTER(Cache), POINTER(Step), c_void_p]
    bound.stride_product.argtypes = [POINTER(Matrix), c_int64, c_int64, c_void_p, c_int64, c_void_p]
    bound.stride_unpack.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p]
    bound.stride_read_chain.argtypes = [POINTER(Model), POINTER(Sequential), c_void_p, c_int64, *[c_void_p] * 5]
    bound.stride_add_scores.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int64, c_void_p]
    bound.stride_top.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
    bound.stride_draw.argtypes = [c_void_p, c_int64, POINTER(DrawRules), c_int64]
    bound.stride_draw.restype = c_int64
    bound.stride_perturb.argtypes = [c_void_p, c_void_p, c_int64, POINTER(DrawRules), c_int64, c_void_p]
    bound.stride_grow.argtypes = [
        *(POINTER(each) for each in (Model, Sequential, Chain, LogitRows, GrowthRules, Grown)),
        c_void_p,
    ]
    bound.stride_move.argtypes = [POINTER(Shape), POINTER(Cache), c_void_p, c_void_p, c_int64]
    bound.stride_steps.restype = c_void_p
    bound.stride_steps.argtypes = [
        *(POINTER(Model), POINTER(Cache), POINTER(MaskParts)),
        *(c_void_p, c_int64, c_int64, c_int64),
    ]
    bound.stride_free_steps.argtypes = [c_void_p]
    bound.stride_begin.argtypes = [c_void_p, c_int64, POINTER(TextStart)]
    bound.stride_give_blocks.argtypes = [c_void_p, c_int64, c_void_p, c_int64]
    bound.stride_end.argtypes = [c_void_p, c_int64]
    bound.stride_run_step.argtypes = [c_void_p, POINTER(Sheets), c_void_p, c_int64]
    for timed in (bound.stride_seconds_of_level, bound.stride_seconds_of_decision):
        timed.argtypes, timed.restype = [c_void_p], c_double
    bound.stride_look_up.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    bound.stride_follow.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]
    bound.stride_candidates.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p]
    for name in ("look_up", "follow", "candidates"):
        getattr(bound, f"stride_{name}").restype = c_int64
    bound.stride_chances.argtypes = [POINTER(Prior), c_double, c_double, *[c_int64] * 4, c_void_p]
    bound.stride_worth.argtypes = [POINTER(Prior), c_int64, POINTER(Costs), c_int64, c_int64, c_double, c_void_p]
    bound.stride_worth.restype = c_double
    bound.stride_choose.argtypes = [c_int64, c_void_p, c_void_p, POINTER(PlanQuestion), *[c_void_p] * 3]
    for name in (
        *("free_workspace", "forward", "product", "read_chain", "add_scores", "top", "perturb", "grow", "unpack"),
        *("move", "free_steps", "begin", "give_blocks", "end", "run_step", "choose", "chances"),
    ):
        getattr(bound, f"stride_{name}").restype = None
    return bound


class Workspace:
    """Memory that the kernels keep between steps. May be used by one step at a time."""

    def __init__(self) -> None:
        self._free = library().stride_free_workspace
        self.handle = library().stride_workspace()

    def __del__(self) -> None:
        self._free(self.handle)
