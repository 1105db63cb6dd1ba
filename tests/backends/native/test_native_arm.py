"""The kernels for ARM give the bits of those for AVX2, in all that they do, on random numbers and under emulation. That
says nothing of speed, and keeps the order of memory of the processor that it runs on."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native import changed_source, skip_without_kernels
from stridelm.backends.common import processor
from stridelm.backends.common.compiler import CannotCompile, check_processor
from stridelm.backends.common.processor import processor_features, processor_name
from stridelm.backends.native.library import AVX2_FLAGS, LINK_FLAGS, NEEDED, NEON_FLAGS, SOURCE

SAME_BITS = Path(__file__).parent / "same_bits" / "same_bits.cpp"
X86 = ("g++", *AVX2_FLAGS)
ARM = ("aarch64-linux-gnu-g++", *NEON_FLAGS, "-static")
EMULATOR = ("qemu-aarch64-static", "-cpu", "neoverse-n1")
"""A processor with what the kernels need and little beyond."""
CHANGES = {
    "rounded": {"lanes_neon.h": ("vrndnq_f32(a.low), vrndnq_f32(a.high)", "vrndaq_f32(a.low), vrndaq_f32(a.high)")},
    "of NaN": {"lanes_neon.h": ("return vbslq_f32(vcgtq_f32(a, b), a, b);", "return vmaxq_f32(a, b);")},
    "fused": {},
}
CPUINFO = {
    "x86_64": "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 fma f16c\n",
    "aarch64": "BogoMIPS\t: 50.00\nFeatures\t: fp asimd fphp asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
}
Said = list[tuple[str, bytes]]


def run_all(folder: Path, compiler: tuple[str, ...], source: Path, *runner: str) -> Said:
    """All that the program says; `source`: of the kernels."""
    program, said = folder / f"{compiler[0]}.program", folder / f"{compiler[0]}.said"
    command = [*compiler, f"-I{source.parent}", str(SAME_BITS), "-o", str(program), *LINK_FLAGS]
    subprocess.run(command, check=True, timeout=300)
    with said.open("wb") as file:
        subprocess.run([*runner, str(program)], stdout=file, check=True, timeout=500)
    return read_said(said)


def read_said(path: Path) -> Said:
    """Of each result its name and its bytes."""
    found: Said = []
    with path.open("rb") as file:
        while line := file.readline():
            size, _, name = line.decode().rstrip("\n").partition(" ")
            found.append((name, file.read(int(size))))
    return found


def different(ours: Said, theirs: Said) -> list[str]:
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    return [name for (name, our), (_, their) in zip(ours, theirs, strict=True) if our != their]


@pytest.fixture(scope="module")
def said_by_avx2(tmp_path_factory: pytest.TempPathFactory) -> Said:
    skip_without_kernels()
    for name in (X86[0], ARM[0], EMULATOR[0]):
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name} here (Debian: apt install g++-aarch64-linux-gnu qemu-user-static)")
    return run_all(tmp_path_factory.mktemp("avx2"), X86, SOURCE)


def test_what_is_compared_compiles() -> None:
    """Here, on any machine with a compiler: the comparison itself needs an emulator, and is slow."""
    skip_without_kernels()
    command = [*X86, "-O0", "-fsyntax-only", f"-I{SOURCE.parent}", str(SAME_BITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_arm_says_the_bits_of_avx2(said_by_avx2: Said, tmp_path: Path) -> None:
    assert len(said_by_avx2) > 2000 and sum(len(numbers) for _, numbers in said_by_avx2) > 30_000_000
    assert different(run_all(tmp_path, ARM, SOURCE, *EMULATOR), said_by_avx2) == []


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_other_bits_are_reported(change: str, said_by_avx2: Said, tmp_path: Path) -> None:
    """Where the kernels round otherwise, choose otherwise between a NaN and a number, or are compiled to fuse products
    and sums by themselves."""
    source = changed_source(tmp_path / "native", CHANGES[change])
    flags = ("-ffp-contract=fast",) if change == "fused" else ()
    assert different(run_all(tmp_path, (*ARM, *flags), source, *EMULATOR), said_by_avx2)


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, machine: str, cpuinfo: str) -> None:
    (folder / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "Path", lambda _: folder / "cpuinfo")


@pytest.mark.parametrize("machine", CPUINFO)
def test_kernels_need_a_processors_instructions(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path, machine, CPUINFO[machine])
    assert set(NEEDED[machine]) <= processor_features()
    check_processor(NEEDED)
    for lacking in NEEDED[machine]:
        pretend(monkeypatch, tmp_path, machine, re.sub(rf"\b{lacking}\b", "", CPUINFO[machine]))
        with pytest.raises(CannotCompile, match=f"the processor has no {lacking}$"):
            check_processor(NEEDED)
    pretend(monkeypatch, tmp_path, "riscv64", "isa\t: rv64imafdcv\n")
    with pytest.raises(CannotCompile, match="there are none for riscv64"):
        check_processor(NEEDED)


def test_a_processor_is_called_by_its_name_or_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path, "x86_64", CPUINFO["x86_64"])
    assert processor_name() == "AMD EPYC"
    pretend(monkeypatch, tmp_path, "aarch64", CPUINFO["aarch64"])
    assert processor_name() == "ARM 0x41 0xd0c"
    pretend(monkeypatch, tmp_path, "riscv64", "")
    assert processor_name() == ""
