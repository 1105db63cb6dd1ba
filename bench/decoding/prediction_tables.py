"""The table of predicted outputs in docs/decoding.md, from what bench/decoding/prediction.py has written."""

from bench.measured import read, spread

_GROUPS = {"edit": "", "answer begun": ", answer begun", "again": ", asked again"}


def prediction() -> str:
    content = read("prediction.json")
    where, cases = content["machine"], content["cases"]
    lines = [
        "| request | answer's tokens | like the file | decoding | with the prompt | at best: decoding | "
        "accepted of verified |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        ways = case["ways"]
        shown, best = ways.get("file", ways["answer"]), ways["answer"]
        likeness = f"{case['likeness']:.0%}" if "file" in ways else ""
        lines.append(
            f"| {case['name']}{_GROUPS[case['group']]} | {case['tokens']} | {likeness} | "
            f"{spread(shown['decoding_speed_up'], unit='x')} | {spread(shown['speed_up'], unit='x')} | "
            f"{best['decoding_speed_up']['median']:.2f}x | {shown['accepted']} of {shown['predicted']} |"
        )
    same = sum(case["is_same"] for case in cases)
    lines.append(
        f"\nSpeed over the same request without its prediction (`auto`, greedy, {content['backend']} backend): medians "
        f"and spread of {content['rounds']} interleaved rounds. All ways, plain decoding among them, wrote the same "
        f"tokens in {same} of {len(cases)} requests. {where['processor']}, {where['date']}."
    )
    return "\n".join(lines)
