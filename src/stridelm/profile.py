"""Profiles: the decoding settings that `stridelm tune` found best, in a file that other commands read."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stridelm.files import write_json
from stridelm.params import InputError
from stridelm.settings import DecodeSettings

FILE = "profile.json"
_FORMAT, _VERSION = "stridelm-profile", 1
_FIELDS = (
    "format", "version", "model", "fingerprint", "decode", "agreement", "measured", "prompts", "max_tokens", "rounds",
    "machine", "command",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """How a candidate did over all rounds and prompts."""

    settings: DecodeSettings
    speed_up: float
    low: float
    """The lower quartile of the speed-up, of which `speed_up` is the median."""
    high: float
    tokens_per_second: float
    tokens_per_forward: float
    agreement: float
    """The share of the plain answer before the first token that differs, on average."""
    identical: float
    """The share of prompts whose answers have the same tokens."""
    exact: bool
    """Whether the decoder promises the same tokens."""
    path: str
    """What ran: the backend, and whose steps."""

    def entry(self) -> dict[str, Any]:
        """As the file holds it."""
        speed_up = {"median": self.speed_up, "low": self.low, "high": self.high}
        return {
            "decode": changed_fields(self.settings),
            "speed_up": {name: round(value, 4) for name, value in speed_up.items()},
            "tokens_per_s": round(self.tokens_per_second, 2),
            "tokens_per_forward": round(self.tokens_per_forward, 4),
            "agreement": round(self.agreement, 4),
            "identical": round(self.identical, 4),
            "exact": self.exact,
            "path": self.path,
        }


def changed_fields(settings: DecodeSettings) -> dict[str, Any]:
    """The settings that are not the default."""
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {each.name: values[each.name] for each in fields(settings) if values[each.name] != each.default}


def label(settings: DecodeSettings) -> str:
    """As in `self k 5`."""
    changed = changed_fields(settings)
    changed.pop("decoder", None)
    return " ".join([settings.decoder, *(f"{name} {value}" for name, value in changed.items())])


def write_profile(
    file: Path, chosen: DecodeSettings, fingerprint: str, measured: list[Measured], record: dict[str, Any]
) -> None:
    """`record`: fields that say how the profile was made; for people, never read back."""
    head = {"format": _FORMAT, "version": _VERSION, "fingerprint": fingerprint, "decode": changed_fields(chosen)}
    whole = head | {"measured": [each.entry() for each in measured]} | record
    write_json(file, {name: whole[name] for name in _FIELDS})


def read_profile(file: Path) -> tuple[DecodeSettings, str]:
    """The settings, and the fingerprint of the model that they were measured with."""
    content = _read(file)
    if content.get("format") != _FORMAT:
        raise InputError(f"{file}: is not a profile ({_FORMAT}): make one with `stridelm tune`")
    if content.get("version") != _VERSION:
        raise InputError(
            f"{file}: is of version {content.get('version')!r}, this stridelm reads {_VERSION}: make a new one with "
            "`stridelm tune`"
        )
    decode, fingerprint = content.get("decode"), content.get("fingerprint")
    if not isinstance(decode, dict) or not isinstance(fingerprint, str):
        raise InputError(
            f"{file}: needs decode (an object) and fingerprint (text): make a new one with `stridelm tune`"
        )
    _check_known(file, "field", content, _FIELDS)
    _check_known(file, "setting of decoding", decode, tuple(each.name for each in fields(DecodeSettings)))
    try:
        return _settings(decode), fingerprint
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror or error}): name the {FILE} that `stridelm tune` wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is damaged ({error}): make a new one with `stridelm tune`") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: is not a profile ({_FORMAT}): make one with `stridelm tune`")
    return content


def _check_known(file: Path, what: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"{file}: there is no {what} {unknown[0]!r}: {', '.join(known)} are known")


def _settings(decode: dict[str, Any]) -> DecodeSettings:
    # JSON may hold types that a command line cannot give; DecodeSettings checks only the values of the right types.
    for name, value in decode.items():
        kind = str if name == "decoder" else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{name} must be {'text' if kind is str else 'a number'}, not {value!r}")
    return DecodeSettings(**decode)
