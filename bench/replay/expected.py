"""A controller that takes the choice with the most expected tokens, beyond those of its time at the current pace."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.play import Choice, Happened, View
from bench.replay.prior import MASK_COUNTS, Ease, Option, Prior, options_of
from bench.replay.times import StepTimes


class Expected:
    def __init__(
        self,
        prior: Prior,
        times: StepTimes,
        *,
        mask_counts: tuple[int, ...] = MASK_COUNTS,
        anchor_sets: str = "any",
        most_drafts: int = 6,
        floor: float = 0.1,
        ease: Ease | None = None,
    ) -> None:
        self.prior, self.times, self.most, self.floor = prior, times, most_drafts, floor
        self.mask_counts, self.anchor_sets = mask_counts, anchor_sets
        self.ease = ease or Ease(prior.first_ease)

    def choose(self, view: View) -> Choice:
        ease = self.ease.value
        worth_UM, pace = self.prior.at(ease)
        reached = [1.0]
        for depth in range(min(view.chain_left, self.most)):
            score = view.score(depth)
            if not score:
                break
            reached.append(reached[-1] * self.prior.chance(score, ease, view.used, depth))
            if reached[-1] < self.floor:
                break
        chain = view.used + view.chain_left if view.chain_left else 0
        best, best_worth = Option(0, (), 0), -float("inf")
        for drafts in range(len(reached)):
            ends = [*(reached[s] - reached[s + 1] for s in range(drafts)), reached[drafts]]
            tokens = sum(reached[: drafts + 1])
            for option in options_of(drafts, self.mask_counts, self.anchor_sets):
                seconds = self.times.forward(1 + drafts, option.masks * len(option.anchors))
                worth = tokens - pace * seconds
                for stood, probability in enumerate(ends):
                    worth += probability * worth_UM[option.leaves(stood, view.used, chain)]
                if worth > best_worth:
                    best, best_worth = option, worth
        return Choice(best.drafts, best.anchors, best.masks)

    def observe(self, happened: Happened) -> None:
        judged = min(len(happened.scores), happened.emitted)
        stood = min(happened.stood, judged)
        self.ease.observe(happened.emitted, min(stood + 1, judged), stood)
