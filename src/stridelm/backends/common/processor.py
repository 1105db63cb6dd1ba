"""Information about the processor, from Linux."""

from pathlib import Path


def processor_entry(name: str) -> str:
    """The first entry of that name in /proc/cpuinfo: `vendor_id`, `model name`, `flags`; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
