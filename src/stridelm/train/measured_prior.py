"""How likely a conversion's drafts are accepted before a text has shown anything, from chains off every token of its
held-out answers."""

from collections.abc import Sequence as Items
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from stridelm.decode.draft_prior import draft_priors
from stridelm.decode.fit_prior import fit, looks
from stridelm.stepper import MaskPrior
from stridelm.train.chain_scorer import Chains, first_choices
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import MaskReader

_DIGITS = 3
_ENOUGH = 2**16
"""Looks at drafts: some 2,000 tokens of text, of which the package's own prior weighs a twentieth."""
_ANCHORS = 32
"""Chains of a text that are run at once."""


def measured_prior(reader: MaskReader, texts: Items[Text]) -> dict[str, dict[str, Any]] | None:
    """As `adapter.json` has it; None if no answer is long enough to show anything. `texts`: greedy answers, or those
    that the conversion learns from."""
    shown: list[np.ndarray] = []
    for text in texts:
        if sum(map(len, shown)) >= _ENOUGH:
            break
        if len(found := _looks(reader, text)):
            shown.append(found)
    if not shown:
        return None
    greedy, sampled = fit(shown, draft_priors())
    return {"greedy": _rounded(greedy), "sampled": _rounded(sampled)}


@torch.no_grad()
def _looks(reader: MaskReader, text: Text) -> np.ndarray:
    # Padded behind the end: the last chains reach beyond it, where nobody looks.
    ids_1T = torch.from_numpy(np.pad(text.tokens.astype(np.int64), (0, reader.drafts + 1)))[None].to(reader.device)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.compiler.set_stance("force_eager"):
        outputs_of = reader.read(ids_1T)
        for anchors_A in torch.arange(text.prompt_length - 1, len(text.tokens) - 1).split(_ANCHORS):
            anchors_A = anchors_A.to(reader.device)
            chains = Chains.off(
                ids_1T.expand(len(anchors_A), -1), anchors_A, outputs_of(anchors_A[None])[0], noise=None
            )
            found.append(first_choices(reader.scorer, chains))
    scores_AP, right_AP = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return looks(scores_AP, right_AP)


def _rounded(prior: MaskPrior) -> dict[str, Any]:
    return {
        name: [round(each, _DIGITS) for each in value] if isinstance(value, tuple) else round(value, _DIGITS)
        for name, value in asdict(prior).items()
    }
