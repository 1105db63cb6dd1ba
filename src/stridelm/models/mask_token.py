"""Converted models that need no base model: every weight was tuned, and an ordinary token serves as the mask.

config.json names that token as `mask_token_id`, and may say how many masks in a row were trained. For the rest of
StrideLM such a model has an adapter without low-rank parts: the embedding of a mask is that token's embedding, or, if
there are several mask tokens, that of its depth's token. Each row says whether it is a mask, so the token may also
occur in a prompt.
"""

from typing import TYPE_CHECKING, Any

from stridelm.models.preview import MASK_KEY
from stridelm.models.tokenizer import TextTokenizer
from stridelm.params import InputError
from stridelm.settings import LARGEST_K

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MASK_TOKEN = "<|stride_mask|>"
ROUND_VOCABULARY = 64
"""An extended vocabulary is padded to a multiple of this: output matrices of odd sizes are slow on GPUs."""
MASK_NAME_KEY = "mask_token"
MASKS_KEY = "trained_masks"
"""The longest chain of masks that a model was trained with. Our conversions store it, others may not."""
MASK_IDS_KEY = "mask_token_ids"
"""The masks' ids by depth, if depths have different tokens; deeper masks use the last one."""


def own_mask_token(config: "PreTrainedConfig", tokenizer: TextTokenizer) -> tuple[str, int] | None:
    """The name and the id of a model's own mask token; None if its config names none."""
    token: Any = getattr(config, MASK_KEY, None)
    if token is None:
        return None
    vocabulary = int(config.get_text_config().vocab_size)
    if type(token) is not int or not 0 <= token < vocabulary:
        raise InputError(
            f"config.json has {token!r} for {MASK_KEY}, but the model's tokens are 0 to {vocabulary - 1}: name the "
            "token that it was converted with, or leave the entry out"
        )
    return str(getattr(config, MASK_NAME_KEY, None) or tokenizer.convert_ids_to_tokens(token)), token


def own_masks(name: str, config: "PreTrainedConfig", tokenizer: TextTokenizer) -> tuple[str, list[int]] | None:
    """The mask token of a model called `name`, and the ids of its longest chain by depth; None if its config names no
    mask token."""
    try:
        found = own_mask_token(config, tokenizer)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    masks: Any = getattr(config, MASKS_KEY, LARGEST_K - 1)
    if found is None:
        return None
    if type(masks) is not int or not 1 <= masks < LARGEST_K:
        raise InputError(
            f"{name}: config.json has {masks!r} for {MASKS_KEY}, which must be between 1 and {LARGEST_K - 1}"
        )
    vocabulary = int(config.get_text_config().vocab_size)
    ids: Any = getattr(config, MASK_IDS_KEY, None) or [found[1]]
    if not isinstance(ids, list) or any(type(each) is not int or not 0 <= each < vocabulary for each in ids):
        raise InputError(
            f"{name}: config.json has {ids!r} for {MASK_IDS_KEY}, which must be a list of tokens from 0 to "
            f"{vocabulary - 1}, or left out"
        )
    return found[0], [ids[min(depth, len(ids) - 1)] for depth in range(masks)]
