"""The body of /playground/race."""

from typing import Annotated

from pydantic import Field

from stridelm.serve.schemas.chat import ChatRequest
from stridelm.serve.schemas.common import Count, DecodeOptions, Strict, StrideOptions
from stridelm.serve.schemas.messages import Messages
from stridelm.settings import PLAIN


class RaceRequest(Strict):
    """A chat that the model is to continue twice: one token at a time, and with a decoder."""

    model: Annotated[str, Field(max_length=1024)]
    """The served model's name."""
    messages: Messages
    """The chat so far."""
    max_tokens: Count
    """Maximum number of tokens to write in each lane."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    """0 takes the likeliest token."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """The seed of both lanes; if it is left out, one is drawn, and the reply names it."""
    stride: DecodeOptions = DecodeOptions()
    """The decoder of the second lane."""

    def lanes(self, seed: int) -> list[ChatRequest]:
        """The request of each lane."""
        return [
            ChatRequest(
                model=self.model,
                messages=self.messages,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                seed=seed,
                stride=StrideOptions.model_validate(options.model_dump() | {"trace": True}),
            )
            for options in (DecodeOptions.model_validate({"decoder": PLAIN}), self.stride)
        ]
