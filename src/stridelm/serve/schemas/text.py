"""The bodies of /v1/completions, /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, Tag

from stridelm.serve.schemas.chat import TemplateFields, Tool
from stridelm.serve.schemas.common import LARGEST_ALTERNATIVES, LARGEST_COUNT, Strict, TextRequest, TokenId
from stridelm.serve.schemas.messages import Messages

Ids = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
Prompts = (
    str
    | Ids
    | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=4096)]
    | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=4096)]
)


class CompletionRequest(TextRequest):
    """Text that the model is to continue as it is, without a chat template."""

    prompt: Prompts
    """Text, token ids, or a list of either: each gets its own answers."""
    echo: bool | None = None
    """Repeat the prompt before the answer; with `logprobs`, report those of the prompt, too."""
    logprobs: Annotated[int, Field(ge=0, le=LARGEST_ALTERNATIVES)] | None = None
    """Report the log probability of each token, and of this many of the likeliest tokens."""
    max_tokens: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] | None = None
    """Maximum number of tokens to write (16)."""
    suffix: str | None = None
    """Text that follows the answer; for models that were trained to fill in, which their vocabulary shows."""
    best_of: Annotated[int, Field(ge=0, le=1)] | None = None
    """Only 1 (or 0) is accepted: every answer that is written is returned."""

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of the prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TokenizeText(Strict):
    """Text to be tokenized."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    """Add the special tokens that the tokenizer puts around a text, such as one at its beginning."""
    return_token_strs: bool = False
    """Return the tokens as strings, too."""


class TokenizeChat(Strict):
    """A chat to be put into the model's template and tokenized."""

    model: str | None = None
    messages: Messages
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=128)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateFields | None = None
    """Further variables for the chat template."""
    add_special_tokens: bool = False
    """Templates write their own."""
    return_token_strs: bool = False
    """Return the tokens as strings, too."""


def _which(body: Any) -> str:
    return "chat" if isinstance(body, TokenizeChat) or (isinstance(body, dict) and "messages" in body) else "text"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("text")] | Annotated[TokenizeChat, Tag("chat")], Discriminator(_which)
]


class DetokenizeRequest(Strict):
    """Tokens to be decoded to text."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class TokenizeReply(BaseModel):
    """Tokens of a text or a chat."""

    count: int
    max_model_len: int
    """Maximum number of tokens of a prompt and its answer together."""
    tokens: list[int]
    token_strs: list[str] | None
    """The tokens as strings, if requested."""


class DetokenizeReply(BaseModel):
    """Text of tokens."""

    prompt: str
