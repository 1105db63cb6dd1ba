"""Makes stridelm-light of a wheel of stridelm: the same files under another name, with torch and transformers as an
extra instead of dependencies.

    python release/light_wheel.py dist/stridelm-0.2.0-*.whl
"""

import argparse
import base64
import hashlib
import zipfile
from email import message_from_bytes
from email.message import Message
from email.policy import compat32
from pathlib import Path

NAME, LIGHT = "stridelm", "stridelm-light"
LEFT_OUT = ("torch", "transformers")
"""Dependencies that become the extra `torch`."""


def make_light(wheel: Path) -> Path:
    """The light wheel, written beside this one."""
    version = wheel.name.split("-")[1]
    made = wheel.with_name(wheel.name.replace(f"{NAME}-", f"{LIGHT.replace('-', '_')}-", 1))
    old, new = (f"{name.replace('-', '_')}-{version}.dist-info" for name in (NAME, LIGHT))
    record: list[str] = []
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as light:
        for entry in given.infolist():
            if entry.filename == f"{old}/RECORD":
                continue
            content = given.read(entry)
            if entry.filename == f"{old}/METADATA":
                unfolded = compat32.clone(max_line_length=None)
                content = _light_metadata(message_from_bytes(content)).as_bytes(policy=unfolded)
            entry.filename = entry.filename.replace(f"{old}/", f"{new}/", 1)
            light.writestr(entry, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{entry.filename},sha256={digest},{len(content)}")
        light.writestr(f"{new}/RECORD", "\n".join([*record, f"{new}/RECORD,,", ""]))
    return made


def _light_metadata(metadata: Message) -> Message:
    metadata.replace_header("Name", LIGHT)
    required = metadata.get_all("Requires-Dist", [])
    del metadata["Requires-Dist"]
    metadata["Provides-Extra"] = "torch"
    for requirement in required:
        left_out = any(requirement.startswith(name) and ";" not in requirement for name in LEFT_OUT)
        metadata["Requires-Dist"] = f"{requirement}; extra == 'torch'" if left_out else requirement
    return metadata


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    print(make_light(parser.parse_args().wheel))
