"""Verified drafts from all available drafters, as many as pay: the policy behind `auto`, `self`, `heads` and
`ensemble`.

Before a step every drafter proposes; the proposals become one tree, ranked by how often such nodes were accepted; the
planner decides how much of it is run and where masks hang. After the step the masks nearest to the path's end are kept
as the chain that the next drafts come from.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stridelm import arrays
from stridelm.contracts import Drafter
from stridelm.decode.commit import decide_all, lawful, next_block, reads_on
from stridelm.decode.cost import LARGEST, Cost
from stridelm.decode.explain import explain
from stridelm.decode.own_plan import own_plan
from stridelm.decode.planner import Outlook, Plan, choose, gains
from stridelm.decode.rates import Clock, DepthRates, Pace, Trial, Use
from stridelm.draft.calibration import Calibration
from stridelm.draft.grow import Chain
from stridelm.draft.mask import MaskDrafter
from stridelm.draft.merge import merge
from stridelm.sampling import Drawer, drawer
from stridelm.settings import LARGEST_K
from stridelm.types import NO_DRAFT, PREDICTION, ROOT, Block, Commit, DraftTree, Output, Sequence
from stridelm.verify import first_choices, follow

_MAX_ANCHORS = 8
"""Maximum number of mask chains that rows are reserved for in the cache."""


@dataclass(slots=True)
class _State:
    """The planner's state for one sequence."""

    rates: DepthRates
    chain: Chain | None = None
    """The masks that its next drafts come from."""
    proposed: list[DraftTree] = field(default_factory=list)
    """What each drafter proposed for the current step, with its own scores."""
    mask_tree: DraftTree = NO_DRAFT
    """The one of these that came from masks."""
    rows: int = 1
    """Number of rows of its latest block."""


class Planned:
    """Plans each sequence's block, given the rows of the others in the batch."""

    def __init__(
        self,
        cost: Cost,
        *,
        masks: MaskDrafter | None = None,
        k: int = 1,
        drafters: tuple[Drafter, ...] = (),
        nodes: int = 16,
        tolerance: float = 0.0,
        switches: bool = False,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`k`: a chain has at most k - 1 masks; `nodes`: maximum number of drafts per step; `switches`: drafters that
        do not pay are asked only now and then, and a batch is decoded plainly if that is faster;
        `now`: seconds of the clock that steps are timed by."""
        self.exact = tolerance == 0
        self.cost, self.masks, self.drafters = cost, masks, drafters
        self.nodes, self.tolerance = nodes, tolerance
        self.longest = k - 1 if masks is not None else 0
        self.places = self.longest + (masks.gate.tail if masks is not None and k == masks.gate.k else 0)
        """Number of places that a chain of `longest` masks proposes tokens for."""
        self.mask_options = tuple(sorted({min(count, self.longest) for count in (2, 4, 6, 8, 12, 16)} - {0}))
        self.needed_rows = 0
        # A backend whose steps have one shape drafts from masks only. `auto` gives up optional drafters for that;
        # decoders that name them do not.
        is_masks_alone = not drafters or (switches and all(drafter.is_optional for drafter in drafters))
        self.own_drafts = self.longest if masks is not None and self.exact and is_masks_alone else None
        self.own_plan = own_plan(self)
        self.reads_whole_texts = any(drafter.reads_whole_texts for drafter in drafters)
        self.reads_predictions = any(drafter.reads_predictions for drafter in drafters)
        self.spare_rows = nodes + _MAX_ANCHORS * self.longest
        if self.reads_predictions:
            self.spare_rows = max(self.spare_rows, LARGEST_K)
        self.layers = tuple(sorted({layer for drafter in drafters for layer in drafter.layers}))
        self.calibrations = {is_sampled: Calibration() for is_sampled in (False, True)}
        self.rates = DepthRates(self.places)
        self.pace = Pace(cost(1))
        self.uses = [Use() for _ in drafters] if switches else []
        self.clock = Clock(cost(1))
        self.trials: dict[int, Trial] = {}
        """By batch size, in powers of two. A single sequence needs none: the cost curve was measured for it."""
        self._switches, self._now = switches, now
        self._trial: Trial | None = None
        self._started = self._planned = 0.0
        """When planning of the current step began, and when it ended."""
        self.plans: Counter[tuple[int, int, int]] = Counter()
        """(nodes, anchors, masks) -> how often."""
        self._states: dict[Sequence, _State] = {}

    def plan(self, sequences: list[Sequence], others: int = 0) -> list[Block]:
        self._started = self._now()
        blocks = self._plan(sequences, others)
        self._planned = self._now()
        return blocks

    def _plan(self, sequences: list[Sequence], others: int) -> list[Block]:
        ready = [sequence for sequence in sequences if not reads_on(sequence)]
        self._trial = None
        if self._switches and len(ready) > 1:
            self._trial = self.trials.setdefault(len(ready).bit_length(), Trial())
        sets_clock = self._switches and len(ready) == 1 and self.clock.wants_plain
        takes_one = sets_clock if self._trial is None else self._trial.takes_one()
        drafted = ready if not takes_one else self._predicted(ready)
        self._draft_nothing([sequence for sequence in ready if sequence not in drafted])
        trees = self._draft(drafted)
        total = others + sum(self._states[s].rows if s in self._states else s.allowance for s in sequences)
        blocks: list[Block] = []
        for sequence in sequences:
            if sequence not in trees:
                blocks.append(next_block(sequence, layers=self.layers))
                continue
            state, tree = self._states[sequence], trees[sequence]
            plan = choose(tree, self._outlook(sequence, state, tree, total - state.rows, len(sequences)))
            block = self._block(sequence, tree, plan)
            total += len(block) - state.rows
            state.rows = len(block)
            self.plans[len(block.tree), len(block.mask_anchors), block.masks] += 1
            blocks.append(block)
        return blocks

    def _block(self, sequence: Sequence, tree: DraftTree, plan: Plan) -> Block:
        return next_block(
            sequence,
            tree.pruned(len(tree), plan.nodes),
            anchors=plan.anchors,
            masks=plan.masks if plan.anchors else 0,
            defers_masks=self.cost.is_cheaper_in_two_stages(len(plan.anchors) * plan.masks, plan.masks),
            layers=self.layers,
        )

    def _predicted(self, sequences: list[Sequence]) -> list[Sequence]:
        """Sequences with a prediction, which get drafts even while a batch takes one token at a time: a trial of the
        others says nothing about them. Never a single sequence, since its plain steps are needed to set the clock."""
        return [] if self._trial is None else [sequence for sequence in sequences if sequence.prediction]

    def _draft_nothing(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            state = self._state(sequence)
            state.proposed, state.mask_tree, state.rows = [], NO_DRAFT, sequence.allowance
            state.chain = None  # stale after this step
            self.plans[0, 0, 0] += 1

    def _state(self, sequence: Sequence) -> _State:
        return self._states.setdefault(sequence, _State(self.rates.for_new_text()))

    def _draft(self, sequences: list[Sequence]) -> dict[Sequence, DraftTree]:
        """One tree for each, from all proposals."""
        for sequence in sequences:
            state = self._state(sequence)
            state.proposed, state.mask_tree = [], NO_DRAFT
        self._draft_by_masks([sequence for sequence in sequences if self._states[sequence].chain is not None])
        has_predictions = any(sequence.prediction for sequence in sequences)
        for number, drafter in enumerate(self.drafters if sequences else ()):
            is_due = not self.uses or self.uses[number].is_due(self._rate)
            if is_due or (has_predictions and drafter.reads_predictions):
                started = self._now()
                for sequence, tree in zip(sequences, drafter.propose(sequences), strict=True):
                    self._states[sequence].proposed.append(lawful(sequence, tree))
                if self.uses:
                    self.uses[number].asked((self._now() - started) / len(sequences))
        return {sequence: self._merged(sequence, self._states[sequence].proposed) for sequence in sequences}

    def _merged(self, sequence: Sequence, proposed: list[DraftTree]) -> DraftTree:
        """One tree of all proposals. A prediction that was accepted for long may be longer than `nodes`."""
        predicted = sum(tree.sources.count(PREDICTION) for tree in proposed)
        return merge(proposed, self._calibration(sequence).accepted, max(self.nodes, predicted))

    def _draft_by_masks(self, sequences: list[Sequence]) -> None:
        if self.masks is None or not sequences:
            return
        chains = [chain for sequence in sequences if (chain := self._states[sequence].chain) is not None]
        depth = max(chain.left for chain in chains)
        trees = self.masks.draft(sequences, chains, depth=depth, floor=self._floor())
        for sequence, tree in zip(sequences, trees, strict=True):
            state = self._states[sequence]
            state.mask_tree = tree
            state.proposed.append(tree)

    @property
    def _rate(self) -> float:
        """Tokens per second that time is worth: the current pace, or plain decoding's if that is faster."""
        return max(self.pace.rate, 1 / self.clock.plain) if self._switches else self.pace.rate

    def _floor(self) -> float:
        """Nodes less likely to be accepted than this do not pay for their row and for being drafted."""
        row = float(self.cost.table[9] - self.cost.table[1]) / 8
        return min(0.5, max(0.005, self._rate * (row + self.cost.level)))

    def _outlook(self, sequence: Sequence, state: _State, tree: DraftTree, others: int, sequences: int) -> Outlook:
        cost, rate, scale = self.cost, self._rate, self.clock.scale if sequences == 1 else 1.0
        pending = sequence.allowance
        most = pending + len(tree) * (1 + self.longest) + self.places + 1
        rows = np.minimum(others + np.arange(most), LARGEST)
        seconds = cost.table[rows] + cost.context * len(sequence.tokens) * np.arange(most)
        seconds = scale * (seconds + cost.sequence * (sequences - 1))
        if _is_predicted(tree):  # if a prediction covers what comes next, masks are wasted rows
            return Outlook(rate, seconds, pending)
        acceptance = state.rates.values()
        row_seconds = seconds[pending + 1 : pending + 1 + self.places] - seconds[pending : pending + self.places]
        row_seconds = [float(each) + scale * cost.level for each in row_seconds]
        gained = gains(acceptance, row_seconds, rate)
        left = [0.0]
        if state.chain is not None:
            left = [*gained[len(state.chain.hidden_DC)][state.chain.used + 1 :], 0.0]
        return Outlook(
            rate, seconds, pending, self.mask_options, scale * cost.masks, scale * cost.mask_row,
            [gained[self._reach(masks)] for masks in self.mask_options], left,
        )  # fmt: skip

    def _reach(self, masks: int) -> int:
        """Number of places that a chain of so many masks proposes tokens for."""
        return self.places if masks == self.longest else masks

    def _calibration(self, sequence: Sequence) -> Calibration:
        return self.calibrations[sequence.params.temperature > 0]

    def commit(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], drawer: Drawer = drawer
    ) -> list[Commit]:
        commits = decide_all(sequences, blocks, outputs, self.tolerance, drawer)
        for sequence, block, output, commit in zip(sequences, blocks, outputs, commits, strict=True):
            if commit.tokens:
                self._learn(sequence, commit)
                self._renew(sequence, block, output, commit)
        self._count(sequences, blocks, commits)
        return commits

    def _count(self, sequences: list[Sequence], blocks: list[Block], commits: list[Commit]) -> None:
        """Record the step's tokens and seconds."""
        masks = sum(block.masks * len(block.mask_anchors) for block in blocks)
        context = sum(block.start for block in blocks) // len(blocks)
        seconds = self.cost(sum(map(len, blocks)) - masks, masks, context=context, sequences=len(blocks))
        tokens = sum(len(commit.tokens) for commit in commits)
        now, planning = self._now(), self._planned - self._started
        # Steps that read prompts say nothing about how fast answers are written.
        if self._switches and all(block.pending == 1 and block.wanted for block in blocks):
            if self._trial is not None:
                self._trial.stepped(tokens, now - self._started)
            elif len(blocks) == 1:
                beyond = seconds - self.cost(1, context=context)
                seconds = self.clock.seconds(beyond)
                if len(blocks[0]) > 1:
                    self.clock.took(beyond, now - self._planned)
                else:
                    self.clock.took_plain(now - self._planned)
        self.pace.stepped(tokens, seconds, planning)

    def _learn(self, sequence: Sequence, commit: Commit) -> None:
        """Learn from all proposals, whether they were run or not: the emitted text is enough to judge them."""
        state, calibration = self._states[sequence], self._calibration(sequence)
        for tree in state.proposed:
            calibration.observe_text(tree, commit.tokens)
        for use, drafter in zip(self.uses, self.drafters, strict=False):
            names = (drafter.name, PREDICTION) if drafter.reads_predictions else (drafter.name,)
            use.brought(sum(map(commit.sources.count, names)))
        if state.chain is not None:  # still the one that the tree was grown from
            known = state.mask_tree.pruned(len(commit.tokens), len(state.mask_tree))
            first = state.chain.used
            for depth, stood in enumerate(first_choices(known, follow(known, commit.tokens)), start=first):
                state.rates.observe(depth, stood)
                self.rates.observe(depth, stood)

    def _renew(self, sequence: Sequence, block: Block, output: Output, commit: Commit) -> None:
        """The chain that the next drafts come from: the masks nearest to where the path ended, or the old chain."""
        state = self._states[sequence]
        path = [ROOT, *(row - block.pending for row in commit.kept[block.pending :])]
        nearest = max((place for place, node in enumerate(path) if node in block.mask_anchors), default=None)
        if self.masks is None or commit.finish_reason is not None:
            state.chain = None
        elif nearest is not None:
            assert output.hidden_WC is not None, "a step with masks gives hidden states"
            rows = block.mask_outputs(path[nearest])
            hidden_DC = output.hidden_WC[rows]
            logits_DV = self.masks.gate.score(hidden_DC) if block.defers_masks else output.logits_WV[rows]
            if self._reach(block.masks) > block.masks:
                further_TC = self.masks.gate.foretell(hidden_DC[-1])
                hidden_DC = arrays.join([hidden_DC, further_TC])
                logits_DV = arrays.join([logits_DV, self.masks.gate.score(further_TC)])
            state.chain = Chain(logits_DV, hidden_DC, top=self.masks.gate.top)
            self.masks.advance(state.chain, list(commit.tokens[nearest:]))
        elif state.chain is not None:
            self.masks.advance(state.chain, [sequence.tokens[-1], *commit.tokens])
        if state.chain is not None and state.chain.left <= 0:
            state.chain = None

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        for drafter in self.drafters:
            drafter.observe(sequences, blocks, outputs, commits)

    def release(self, sequence: Sequence) -> None:
        self._states.pop(sequence, None)
        for drafter in self.drafters:
            drafter.release(sequence)

    def explain(self) -> list[str]:
        """What was chosen so far, and why."""
        return explain(self.cost, self.pace, self.plans, self.calibrations, has_masks=self.masks is not None)


def _is_predicted(tree: DraftTree) -> bool:
    """Whether a prediction will probably be accepted."""
    firsts = zip(tree.parents, tree.sources, tree.scores, strict=True)
    return any(parent == ROOT and source == PREDICTION and score > 0.5 for parent, source, score in firsts)
