"""A controller that takes the choice with the most expected tokens, beyond those of its time at the current pace.

Before a step: how easy the text has been gives the pace and the worth of chains (`Worth`); the chain is drafted from as
long as a draft may still pay; every number of drafts, place and number of masks is valued. Resting needs no rule of its
own: if masks are not worth their time at this ease, the best choice is a single row. Looking again does: without masks
nothing is learned about them. So a text begins with two, and has two again after `LOOK_AGAIN` tokens without any.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from operator import mul
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.play import Choice, Happened, View
from bench.replay.prior import Prior
from bench.replay.times import StepTimes
from bench.replay.worth import MASK_COUNTS, MOST_DRAFTS, Option, Worth, ends, options_of
from stridelm.decode.fit_prior import Ease

FLOOR = 0.2
"""A draft that is reached less often than this never pays for its row."""
LOOK_AGAIN, LOOK_MASKS = 64, 2
CAUTION = 0.93
"""What masks will bring is an estimate, the time that they take is not."""


class Expected:
    def __init__(
        self,
        prior: Prior,
        worth: Worth,
        times: StepTimes,
        *,
        looks_up: bool = True,
        drafts_masks: bool = True,
        mask_counts: tuple[int, ...] = MASK_COUNTS,
        ease: Ease | None = None,
    ) -> None:
        self.prior, self.worth, self.times = prior, worth, times
        self.looks_up, self.mask_counts = looks_up, mask_counts if drafts_masks else ()
        self.ease = ease or Ease(prior.ease)
        self._rested = LOOK_AGAIN
        """Tokens since drafts from masks were last seen."""

    def choose(self, view: View) -> Choice:
        best = self._best(view)
        is_to_look = self.mask_counts and self._rested >= LOOK_AGAIN and not best.is_found
        if is_to_look and not best.masks and view.chain_left <= best.drafts + 1:
            return replace(best, anchors=(best.drafts,), masks=LOOK_MASKS)
        return best

    def _best(self, view: View) -> Choice:
        worth_UM, pace = self.worth.at(self.ease.value)
        chain = view.used + view.chain_left if view.chain_left else 0
        best, best_worth = Choice(), -float("inf")
        for is_found, reached in self._proposals(view):
            for option in _options(len(reached) - 1, is_found, self.mask_counts):
                here = reached[: option.drafts + 1]
                worth = sum(here) - pace * self.times.forward(1 + option.drafts, option.masks)
                for stood, share in enumerate(ends(here)):
                    used, masks = option.leaves(stood, view.used, chain)
                    worth += CAUTION * share * worth_UM[used][masks]
                if worth > best_worth:
                    anchors = (option.anchor,) if option.masks else ()
                    best, best_worth = Choice(option.drafts, anchors, option.masks, (), is_found), worth
        return best

    def _proposals(self, view: View) -> Iterable[tuple[bool, list[float]]]:
        """Whether look-up found it, and the probabilities that so many of the drafts are accepted."""
        length, count = view.match() if self.looks_up else (0, 0)
        chain = self._drafted(view)
        found = [self.prior.of_match(length, ahead) for ahead in range(count)]
        agreeing = min(view.agreeing(), len(chain)) if count else 0
        for depth in range(agreeing):
            chain[depth] = found[depth] = self.prior.joint(self.prior.agreed, chain[depth], found[depth])
        if agreeing < min(len(chain), count):  # where they part
            both = chain[agreeing], found[agreeing]
            chain[agreeing] = self.prior.joint(self.prior.chain_against, *both)
            found[agreeing] = self.prior.joint(self.prior.found_against, *both)
        yield False, [1.0, *accumulate(chain, mul)]
        if count:
            yield True, [1.0, *accumulate(found, mul)]

    def _drafted(self, view: View) -> list[float]:
        """The probabilities of the chain's drafts, each if those before it are accepted."""
        chances, path, ease = list[float](), 1.0, self.ease.value
        for depth in range(min(view.chain_left, MOST_DRAFTS)):
            score = view.score(depth)
            chance = self.prior.of_score(score, ease, view.used, depth) if score else 0.0
            path *= chance
            if path < FLOOR:
                break
            chances.append(chance)
        return chances

    def observe(self, happened: Happened) -> None:
        self._rested = 0 if happened.scores else self._rested + happened.emitted
        judged = min(len(happened.scores), happened.emitted)
        stood = min(happened.stood, judged)
        self.ease.observe(happened.emitted, min(stood + 1, judged), stood)


def _options(most: int, is_found: bool, mask_counts: tuple[int, ...]) -> Iterable[Option]:
    for drafts in range(is_found, most + 1):
        for option in options_of(drafts, mask_counts):
            # Look-up's drafts may be many: masks hang off the first row or the last one.
            if not is_found or option.anchor in (0, drafts):
                yield option
