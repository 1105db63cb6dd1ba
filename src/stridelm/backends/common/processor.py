"""Information about the processor, from Linux."""

from pathlib import Path


def processor_name() -> str:
    """What the system calls it; of ARM processors it knows two numbers only."""
    numbers = " ".join(filter(None, map(processor_entry, ("CPU implementer", "CPU part"))))
    return processor_entry("model name") or (numbers and f"ARM {numbers}")


def processor_features() -> frozenset[str]:
    """The instruction sets that it has, as Linux calls them."""
    return frozenset((processor_entry("flags") or processor_entry("Features")).split())  # on x86, on ARM


def processor_entry(name: str) -> str:
    """The first entry of that name in /proc/cpuinfo, such as `vendor_id`; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
