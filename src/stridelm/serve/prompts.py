"""From what a request says to the token ids that the model reads."""

import asyncio
from typing import Any

import orjson
from jinja2 import TemplateError

from stridelm.model.tokenizer import TextTokenizer
from stridelm.serve.chat_schema import AssistantMessage, Content, Function, Message, ToolCall, ToolMessage
from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.json_body import depth
from stridelm.serve.tools import Call, ToolTalk, describe, tool_talk

Turn = dict[str, Any]
"""A message as templates read it."""
_DEEPEST_ARGUMENTS = 64


class Prompts:
    """Encodes chats and texts for one model."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokenizer: TextTokenizer = context.model.target.tokenizer
        # The first call may change the tokenizer's settings, which is not for several threads at once.
        self._tokenizer.encode("hello")
        hello: list[Turn] = [{"role": "user", "content": "hello"}]
        template = self._tokenizer.chat_template
        self.talk: ToolTalk = tool_talk(
            template if isinstance(template, str | None) else str(template),
            lambda tools: self._apply(hello, tools, opens_turn=True),
        )

    async def chat(
        self,
        messages: list[Message],
        functions: list[Function],
        *,
        opens_turn: bool = True,
        continues: bool = False,
        adds_special: bool = False,
    ) -> list[int]:
        """A chat in the model's template. `functions` are those that the model is told of."""
        _check_ending(messages, opens_turn=opens_turn, continues=continues)
        turns = self._turns(messages)
        tools = [_shown(function) for function in functions]
        if tools and not self.talk.has_place:
            turns, tools = _with_system(turns, describe(tools)), []

        def render() -> list[int]:
            text = self._render(turns, tools or None, opens_turn=opens_turn, continues=continues)
            return self._tokenizer.encode(text, add_special_tokens=adds_special)

        # Long texts take their time, and others wait for the event loop.
        return await asyncio.to_thread(render)

    async def text(self, prompt: str, *, adds_special: bool = True) -> list[int]:
        """A text as it stands."""
        return await asyncio.to_thread(self._tokenizer.encode, prompt, add_special_tokens=adds_special)

    def checked(self, ids: list[int], param: str) -> list[int]:
        """Token ids that the model can read and still write something."""
        if not ids:
            raise ApiError(400, f"{param}: it is empty, it has no tokens", param=param)
        most = self._context.model.max_length
        if len(ids) >= most:
            raise ApiError(
                400,
                f"{param}: these are {len(ids)} tokens, but the model takes {most} with the answer",
                param=param,
                code="context_length_exceeded",
            )
        self.check_known(ids, param)
        return ids

    def check_known(self, ids: list[int], param: str) -> None:
        vocabulary = self._context.model.target.vocabulary
        if ids and max(ids) >= vocabulary:
            raise ApiError(400, f"{param}: there is no token {max(ids)}, the model has {vocabulary}", param=param)

    def _render(self, turns: list[Turn], tools: list[Turn] | None, *, opens_turn: bool, continues: bool) -> str:
        if not self._tokenizer.chat_template:
            raise ApiError(400, "this model has no chat template: use /v1/completions", param="messages")
        try:
            return self._apply(turns, tools, opens_turn=opens_turn, continues=continues)
        except TemplateError as error:
            raise ApiError(
                400, f"the model's chat template does not take these messages: {error}", param="messages"
            ) from error
        # A template is a program of the model's: what it refuses it may tell by raising anything.
        except Exception as error:
            raise ApiError(400, "the model's chat template does not take these messages", param="messages") from error

    def _apply(self, turns: list[Turn], tools: list[Turn] | None, *, opens_turn: bool, continues: bool = False) -> str:
        return self._tokenizer.apply_chat_template(
            turns,
            tools=tools,
            add_generation_prompt=opens_turn,
            continue_final_message=continues,
            tokenize=False,
        )

    def _turns(self, messages: list[Message]) -> list[Turn]:
        if self.talk.has_place:
            return [_turn(message, messages) for message in messages]
        turns: list[Turn] = []
        for message in messages:
            turn = self._spelt_out(message, messages)
            if isinstance(message, ToolMessage) and turns and turns[-1].get("answers"):
                turns[-1]["content"] += "\n" + turn["content"]
            else:
                turns.append(turn)
        return [{"role": turn["role"], "content": turn["content"]} for turn in turns]

    def _spelt_out(self, message: Message, messages: list[Message]) -> Turn:
        """A message for a template that knows nothing of tools: calls are text, what they gave a user's turn."""
        turn = _turn(message, messages)
        if isinstance(message, ToolMessage):
            answer = orjson.dumps({"name": turn["name"], "content": turn["content"]}).decode()
            return {"role": "user", "content": f"<tool_response>\n{answer}\n</tool_response>", "answers": True}
        if "tool_calls" in turn:
            assert self.talk.format is not None
            calls = [Call(call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]]
            turn["content"] = "\n".join(filter(None, [turn["content"], self.talk.format.write(calls)]))
        return turn


def _check_ending(messages: list[Message], *, opens_turn: bool, continues: bool) -> None:
    if continues and opens_turn:
        message = "continue_final_message goes on with a turn, add_generation_prompt opens one: choose"
        raise ApiError(400, message, param="add_generation_prompt")
    last = messages[-1]
    if continues and not (isinstance(last, AssistantMessage) and last.content is not None and not last.tool_calls):
        message = "continue_final_message: the last message must be text of the assistant's"
        raise ApiError(400, message, param="continue_final_message")


def _turn(message: Message, messages: list[Message]) -> Turn:
    """A message as templates read it: content is text, arguments are objects."""
    turn: Turn = {"role": message.role, "content": _text(message.content)}
    if isinstance(message, ToolMessage):
        turn |= {"tool_call_id": message.tool_call_id, "name": message.name or _called(message.tool_call_id, messages)}
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            turn["tool_calls"] = [_call(call) for call in message.tool_calls]
        elif message.content is None:
            raise ApiError(400, "messages: the assistant's must have content or tool_calls", param="messages")
    return turn


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _call(call: ToolCall) -> Turn:
    try:
        arguments = orjson.loads(call.function.arguments)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"messages: the arguments of {call.id} are not JSON", param="messages") from error
    if not isinstance(arguments, dict) or depth(arguments) > _DEEPEST_ARGUMENTS:
        message = f"messages: the arguments of {call.id} must be an object, at most {_DEEPEST_ARGUMENTS} deep"
        raise ApiError(400, message, param="messages")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _called(call_id: str, messages: list[Message]) -> str:
    """The function that a call with this id called."""
    for message in messages:
        for call in (isinstance(message, AssistantMessage) and message.tool_calls) or ():
            if call.id == call_id:
                return call.function.name
    raise ApiError(400, f"messages: no call has the id {call_id}", param="messages")


def _shown(function: Function) -> Turn:
    """A tool as templates read it."""
    parameters = function.parameters or {"type": "object", "properties": {}}
    described = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": described}


def _with_system(turns: list[Turn], text: str) -> list[Turn]:
    """The chat with something added to what the system says."""
    if turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]
