"""Tables of docs/performance.md: the wheels, and the kernels that they bring."""

from bench.measured import read, table


def install() -> str:
    content = read("install.json")
    rows = [
        [
            f"`{name}`",
            f"{entry['wheel_mb']:.0f} MB",
            f"{entry['environment_mb']:.0f} MB",
            f"{entry['install_seconds']:.0f} s",
            f"{entry['first_seconds']:.0f} s",
            f"{entry['second_seconds']:.1f} s",
        ]
        for name, entry in content["wheels"].items()
    ]
    heads = ["", "wheel", "all that is installed", "pip install", "first token, fetched and packed", "from then on"]
    where = content["machine"]
    (path,) = {entry["path"] for entry in content["wheels"].values()}
    return (
        f"{table(heads, rows)}\n\nWithout a compiler or git; the answer's path: {path}. {where['processor']}, "
        f"{where['threads']} cores, a package index nearby, {where['date']}."
    )


def builds() -> str:
    content = read("forward-builds.json")
    forwards = content["milliseconds"]
    shapes = list(next(iter(forwards.values())))
    rows = [
        [name, *(f"{by[shape]['median']:.2f} ({by[shape]['tenth']:.2f})" for shape in shapes)]
        for name, by in forwards.items()
    ]
    where = content["machine"]
    return (
        f"{table(['ms by rows', *shapes], rows)}\n\nMedians (10th percentiles), context {content['context']}. "
        f"{where['processor']}, {where['threads']} threads, {where['date']}."
    )
