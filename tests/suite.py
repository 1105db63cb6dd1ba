"""What the whole suite shares: where it is, which files take long, and a cost that is the same on every machine."""

from collections.abc import Callable
from pathlib import Path

from stridelm.decode.cost import Cost

TESTS = Path(__file__).parent
LONG_FILES = (
    "test_exactness.py",
    "serve/test_openapi.py",
    "backends/native/test_native_exactness.py",
    "engine/test_own_steps_machine.py",
    "serve/test_serve_load.py",
    "backends/native/test_native_sanitizers.py",
    "backends/native/test_native_arm.py",
    "serve/playground/test_playground_browser.py",
    "backends/gpu/test_gpu_stepper.py",
    "test_toys.py",
    "train/test_modes.py",
    "backends/gpu/test_gpu_forward.py",
    "train/test_parallel.py",
    "serve/test_serve_attacks.py",
    "serve/test_serve_lifecycle.py",
    "cli/test_cli.py",
    "models/test_builtin.py",
    "train/test_train.py",
    "backends/gpu/test_gpu_rollout.py",
)
"""Those that take half a minute or more, or minutes in `make test-slow`; the longest first."""
TinyFolder = Callable[..., Path]
COST = Cost((1, 2, 8, 16, 32), (1.0, 1.05, 1.2, 1.5, 2.2), masks=0.05, mask_row=0.005)
