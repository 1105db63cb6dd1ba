"""/v1/messages: Anthropic's Messages API. A request is translated to a chat's, and the answer back."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from stridelm.serve.blocks import BlockWriter
from stridelm.serve.chat_answers import count_prompt, open_chat
from stridelm.serve.context import Context
from stridelm.serve.errors import MESSAGES
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.json_body import JsonReply
from stridelm.serve.messages.form import MessageForm
from stridelm.serve.messages.request import CountRequest, MessagesError, MessagesRequest, TokenCount
from stridelm.serve.messages.translate import translate, translate_count
from stridelm.serve.prompts import Prompts
from stridelm.serve.respond import respond
from stridelm.serve.schemas.common import TEXT_REPLY, error_replies

_ERRORS = error_replies(MessagesError)


def add_messages(router: APIRouter, context: Context, prompts: Prompts, vocabulary: Vocabulary) -> None:
    @router.post(MESSAGES, responses=TEXT_REPLY | _ERRORS, response_class=JsonReply)
    async def messages(http: Request, request: MessagesRequest) -> Response:
        # In a thread, since a chat may be long.
        answers = await open_chat(context, prompts, vocabulary, await asyncio.to_thread(translate, request, prompts))
        writer = BlockWriter(answers, MessageForm(answers))
        return await respond(http, answers.streams, writer, context.settings, streams=bool(request.stream))

    @router.post(
        f"{MESSAGES}/count_tokens", responses={200: {"model": TokenCount}, **_ERRORS}, response_class=JsonReply
    )
    async def count_tokens(request: CountRequest) -> Response:
        translated = await asyncio.to_thread(translate_count, request, prompts)
        return JsonReply({"input_tokens": await count_prompt(context, prompts, translated)})
