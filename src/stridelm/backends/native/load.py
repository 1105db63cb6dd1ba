"""Models that the kernels run: packed when they are first loaded, memory-mapped from then on, without torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.library import library
from stridelm.backends.native.model_source import Source, find_source
from stridelm.backends.native.packed_file import Packed, drift_key, file_identity, packed_folder, read_or_pack
from stridelm.backends.native.weights import make_weights, takes_bytes
from stridelm.models.preview import adapter_folder, warn_of_other_weights
from stridelm.models.target import LoadedModel, Target
from stridelm.models.tokenizer import Tokenizer
from stridelm.settings import ModelChoice


@dataclass(frozen=True, slots=True)
class NativeTarget(Target):
    """A packed model."""

    packed: Packed
    activations: str
    kv_cache: str

    @property
    def description(self) -> str:
        numbers, divergence = self.packed.notes["numbers"], self.drift["divergence"]
        cache = "" if self.kv_cache == "float16" else f" and an {self.kv_cache} KV cache"
        return (
            f"{self.name} in {numbers} with {self.activations} activations{cache} (KL {divergence:.0e} from float32) "
            "on cpu, one token at a time"
        )

    @property
    def is_verified_exactly(self) -> bool:
        return True

    @property
    def device(self) -> str:
        return "CPU"

    @property
    def drift(self) -> dict[str, float]:
        """Differences from float32, as measured by `native/drift.py`."""
        return self.packed.notes["drift"][drift_key(self.activations, self.kv_cache)]


def load_model(choice: ModelChoice) -> LoadedModel:
    """The model and its adapter. Raises DoesNotFit for a model that the kernels do not support, and CannotCompile if
    there are no kernels for this machine."""
    model, settings = choice.model, choice.settings
    lanes = int(library().stride_lanes())
    source = find_source(model, settings)
    packed, where = _packed(source, lanes)
    given = adapter_folder(model, choice.adapter)
    packed_adapter = packed if packed.notes["masks"] else None
    activations = settings.activations if takes_bytes(packed) else "int16"
    if given is not None:
        packed_adapter = _packed_adapter(given, model, packed, lanes)
    target = NativeTarget(
        name=model,
        tokenizer=Tokenizer.from_folder(where),
        eos_ids=frozenset(packed.notes["eos_ids"]),
        context_length=packed.notes["context_length"],
        vocabulary=packed.notes["vocabulary"],
        fingerprint=packed.notes["fingerprint"],
        packed=packed,
        activations=activations,
        kv_cache=settings.kv_cache,
    )
    weights = make_weights(packed, packed_adapter, settings.threads, activations)
    return LoadedModel(target, NativeForward(weights, settings.cache_tokens, settings.kv_cache))


def _packed(source: Source, lanes: int) -> tuple[Packed, Path]:
    folder = packed_folder((*source.identity, lanes))

    def pack() -> None:
        from stridelm.backends.native.pack_model import pack

        pack(source, folder, lanes)

    packed = read_or_pack(folder, lanes, pack)
    source.check_requantised(packed.notes.get("requantised", ()))
    return packed, folder


def _packed_adapter(folder: Path, model: str, packed: Packed, lanes: int) -> Packed:
    """The packed form of an adapter."""
    packed_to = packed_folder((packed.notes["fingerprint"], *_identity(folder), lanes))

    def pack() -> None:
        from stridelm.backends.native.pack_adapter import pack_adapter
        from stridelm.models.adapter import load_adapter
        from stridelm.models.weight_arrays import read_arrays

        pack_adapter(folder, load_adapter(folder, read_arrays), packed, packed_to, lanes)

    adapter = read_or_pack(packed_to, lanes, pack)
    trained_on = adapter.notes["base"], adapter.notes["fingerprint"]
    warn_of_other_weights(folder, trained_on, (model, packed.notes["fingerprint"]))
    return adapter


def _identity(folder: Path) -> tuple[object, ...]:
    """Identifies an adapter's files: the settings by content, the weights by size and time."""
    try:
        content = hashlib.sha256((folder / "adapter.json").read_bytes()).hexdigest()
    except OSError:
        return (str(folder),)  # loading it will report what is wrong
    return str(folder.resolve()), content, *map(file_identity, sorted(folder.glob("*.safetensors")))
