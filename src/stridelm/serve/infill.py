"""Prompts with a gap in the text, for models that were trained to fill it (fill in the middle)."""

from dataclasses import dataclass

from stridelm.models.tokenizer import TextTokenizer

_FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
)
"""The tokens of Qwen and Gemma, of StarCoder and of SantaCoder: before the prefix, the suffix and the middle. CodeLlama
is not supported: its tokenizer begins both texts with a space, and its middle ends with a token of its own."""


@dataclass(frozen=True, slots=True)
class FillIn:
    """The three tokens of one model."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> "FillIn | None":
        """None: the model was not trained to fill in."""
        vocabulary = tokenizer.get_vocab()
        found = (form for form in _FORMS if all(name in vocabulary for name in form))
        return next((cls(*(vocabulary[name] for name in form)) for form in found), None)

    def join(self, before: list[int], behind: list[int]) -> list[int]:
        """The prompt; the model continues it with the text between the two."""
        return [self.prefix, *before, self.suffix, *behind, self.middle]
