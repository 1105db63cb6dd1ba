"""A gap in a text, in the tokens of models that were taught to fill it."""

from dataclasses import dataclass

from stridelm.models.tokenizer import TextTokenizer

_FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
)
"""Of Qwen and Gemma, StarCoder, SantaCoder: what comes before, what comes behind, and now the middle. Not CodeLlama's:
its tokenizer begins both texts with a space, and its middle ends with a token of its own."""


@dataclass(frozen=True, slots=True)
class FillIn:
    """The three tokens."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> "FillIn | None":
        """None: the model was not taught."""
        vocabulary = tokenizer.get_vocab()
        found = (form for form in _FORMS if all(name in vocabulary for name in form))
        return next((cls(*(vocabulary[name] for name in form)) for form in found), None)

    def join(self, before: list[int], behind: list[int]) -> list[int]:
        """What the model reads; it goes on with what belongs between the two."""
        return [self.prefix, *before, self.suffix, *behind, self.middle]
