"""From a request to the token ids that the model reads."""

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
from jinja2 import TemplateError

from stridelm.models.tokenizer import TextTokenizer
from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.http.bounds import too_long
from stridelm.serve.http.json_body import depth
from stridelm.serve.infill import FillIn
from stridelm.serve.schemas.chat import Function
from stridelm.serve.schemas.messages import AnyMessage, AssistantMessage, Content, Said, ToolCall, ToolMessage
from stridelm.serve.text_bound import TextBound
from stridelm.serve.tools.forms import Call, ToolTalk, describe, tool_talk

Turn = dict[str, Any]
"""A message as templates read it."""
Variables = dict[str, Any]
"""Further variables of a chat template, by name."""
MAX_ARGUMENT_DEPTH = 64
_LONG = 64 * 2**10
"""Texts of more characters than this take a tenth of a second or longer to encode."""
_LONG_TEXTS = ThreadPoolExecutor(1, thread_name_prefix="stridelm-tokenizer")


class Prompts:
    """Encodes chats and texts for one model."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokenizer: TextTokenizer = context.model.target.tokenizer
        # The first call may change the tokenizer's settings, so it must not come from several threads at once.
        self._beginning = _beginning(self._tokenizer)
        self._bound = TextBound(self._tokenizer, context.model.max_length)
        self._fill_in = FillIn.of(self._tokenizer)
        hello: list[Turn] = [{"role": "user", "content": "hello"}]
        template = self._tokenizer.chat_template
        self._template = str(template or "")
        self.talk: ToolTalk = tool_talk(
            template if isinstance(template, str | None) else str(template),
            lambda tools: self._apply(hello, tools, {}, opens_turn=True),
        )

    async def chat(
        self,
        messages: list[AnyMessage],
        functions: list[Function],
        *,
        opens_turn: bool = True,
        continues: bool = False,
        adds_special: bool = False,
        variables: Variables | None = None,
    ) -> list[int]:
        """Encode a chat in the model's template. `functions`: those that are described to the model."""
        _check_ending(messages, opens_turn=opens_turn, continues=continues)

        def render() -> str:
            self._check_length([text for message in messages for text in _texts(message)], "messages")
            self._check_length([function.description or "" for function in functions], "tools")
            turns, tools = self._turns(messages), [_shown(function) for function in functions]
            if tools and not self.talk.has_place:
                turns, tools = _with_system(turns, describe(tools)), []
            text = self._render(turns, tools or None, variables or {}, opens_turn=opens_turn, continues=continues)
            self._check_length([text], "messages")
            return text

        return await self._encode(await asyncio.to_thread(render), adds_special=adds_special)

    def variables(self, given: Variables | None, effort: str | None = None) -> Variables:
        """The template's variables that a request sets. `effort`: its `reasoning_effort`."""
        given = given or {}
        for name in given:
            if name in self._own_variables():
                message = f"chat_template_kwargs: {name} is set by the server"
                raise ApiError(400, message, param=f"chat_template_kwargs.{name}")
        if effort is not None and given.get("reasoning_effort", effort) != effort:
            message = "reasoning_effort and chat_template_kwargs say different things: give one"
            raise ApiError(400, message, param="reasoning_effort")
        return given if effort is None else {**given, "reasoning_effort": effort}

    def ignored(self, given: Variables | None, effort: str | None) -> list[str]:
        """Names of the variables in a request that the template does not read."""
        names = {name: f"chat_template_kwargs.{name}" for name in given or ()}
        names |= {} if effort is None else {"reasoning_effort": "reasoning_effort"}
        return [shown for name, shown in names.items() if not self.reads(name)]

    def reads(self, variable: str) -> bool:
        """Whether the template mentions a variable."""
        return variable in self._template

    def _own_variables(self) -> set[str]:
        """Names that the template gets from elsewhere, or that the tokenizer would take as its own arguments."""
        settings = inspect.signature(self._tokenizer.apply_chat_template).parameters
        return {"messages", *settings, *getattr(self._tokenizer, "special_tokens_map", ())}

    async def text(self, prompt: str, param: str = "prompt", *, adds_special: bool = True) -> list[int]:
        """Encode a text as it is."""
        self._check_length([prompt], param)
        return await self._encode(prompt, adds_special=adds_special)

    async def gap(self, prompt: str, suffix: str) -> tuple[list[int], slice]:
        """A prompt for the gap between two texts, for models that were trained to fill it, and where in the prompt the
        first text is."""
        if self._fill_in is None:
            raise ApiError(400, "suffix: this model was not taught to fill in, it has no tokens for it", param="suffix")
        before = await self.text(prompt, adds_special=False)
        gap = self._fill_in.join(before, await self.text(suffix, "suffix", adds_special=False))
        first = len(self._beginning) + 1
        return [*self._beginning, *gap], slice(first, first + len(before))

    async def _encode(self, text: str, *, adds_special: bool) -> list[int]:
        """Runs off the event loop. Long texts take seconds: they are encoded one at a time, so that there are always
        threads for short ones."""
        work = partial(self._tokenizer.encode, text, add_special_tokens=adds_special)
        return await asyncio.get_running_loop().run_in_executor(_LONG_TEXTS if len(text) > _LONG else None, work)

    def _check_length(self, texts: list[str], param: str) -> None:
        """Refuse texts that together cannot fit, whatever their tokens are, before they are tokenized."""
        if characters := self._bound.excess(texts):
            raise too_long(param, f"{characters} characters", self._context.model.max_length)

    def checked(self, ids: list[int], param: str) -> list[int]:
        """Check that the model knows these token ids and has room for an answer; returns them."""
        if not ids:
            raise ApiError(400, f"{param}: it is empty, it has no tokens", param=param)
        most = self._context.model.max_length
        if len(ids) >= most:
            raise too_long(param, f"{len(ids)} tokens", most)
        self.check_known(ids, param)
        return ids

    def check_known(self, ids: list[int], param: str) -> None:
        vocabulary = self._context.model.target.vocabulary
        if ids and max(ids) >= vocabulary:
            raise ApiError(400, f"{param}: there is no token {max(ids)}, the model has {vocabulary}", param=param)

    def _render(
        self,
        turns: list[Turn],
        tools: list[Turn] | None,
        variables: Variables,
        *,
        opens_turn: bool,
        continues: bool,
    ) -> str:
        if not self._tokenizer.chat_template:
            raise ApiError(400, "this model has no chat template: use /v1/completions", param="messages")
        try:
            return self._apply(turns, tools, variables, opens_turn=opens_turn, continues=continues)
        except TemplateError as error:
            raise ApiError(
                400, f"the model's chat template does not take these messages: {error}", param="messages"
            ) from error
        # A template is a program that comes with the model: it may raise anything to refuse messages.
        except Exception as error:
            raise ApiError(400, "the model's chat template does not take these messages", param="messages") from error

    def _apply(
        self,
        turns: list[Turn],
        tools: list[Turn] | None,
        variables: Variables,
        *,
        opens_turn: bool,
        continues: bool = False,
    ) -> str:
        return self._tokenizer.apply_chat_template(
            turns,
            tools=tools,
            add_generation_prompt=opens_turn,
            continue_final_message=continues,
            tokenize=False,
            **variables,
        )

    def _turns(self, messages: list[AnyMessage]) -> list[Turn]:
        called = _called(messages)
        if self.talk.has_place:
            return [_turn(message, called) for message in messages]
        turns: list[Turn] = []
        for message in messages:
            turn = self._without_tools(message, called)
            if isinstance(message, ToolMessage) and turns and turns[-1].get("answers"):
                turns[-1]["content"] += "\n" + turn["content"]
            else:
                turns.append(turn)
        return [
            {name: value for name, value in turn.items() if name not in ("answers", "tool_calls")} for turn in turns
        ]

    def _without_tools(self, message: AnyMessage, called: dict[str, str]) -> Turn:
        """A message for a template that does not accept tools: calls become text, and their results a user's turn."""
        turn = _turn(message, called)
        if isinstance(message, ToolMessage):
            answer = orjson.dumps({"name": turn["name"], "content": turn["content"]}).decode()
            return {"role": "user", "content": f"<tool_response>\n{answer}\n</tool_response>", "answers": True}
        if "tool_calls" in turn:
            assert self.talk.format is not None
            calls = [Call(call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]]
            turn["content"] = "\n".join(filter(None, [turn["content"], self.talk.format.write(calls)]))
        return turn


def _check_ending(messages: list[AnyMessage], *, opens_turn: bool, continues: bool) -> None:
    if continues and opens_turn:
        message = "continue_final_message goes on with a turn, add_generation_prompt opens one: choose"
        raise ApiError(400, message, param="add_generation_prompt")
    last = messages[-1]
    if continues and not (isinstance(last, AssistantMessage) and last.content is not None and not last.tool_calls):
        message = "continue_final_message: the last message must be text of the assistant's"
        raise ApiError(400, message, param="continue_final_message")


def _turn(message: AnyMessage, called: dict[str, str]) -> Turn:
    """A message as templates read it: content is text, arguments are objects. `called`: functions by call id."""
    role = "system" if message.role == "developer" else message.role
    turn: Turn = {"role": role, "content": text_of(message.content)}
    if message.name is not None:
        turn["name"] = message.name
    if isinstance(message, ToolMessage):
        name = message.name or called.get(message.tool_call_id)
        if name is None:
            raise ApiError(400, f"messages: no call has the id {message.tool_call_id}", param="messages")
        turn |= {"tool_call_id": message.tool_call_id, "name": name}
    if isinstance(message, AssistantMessage):
        if message.content is None and message.refusal:
            turn["content"] = message.refusal
        if reasoning := message.reasoning_content or message.reasoning:
            turn["reasoning_content"] = reasoning
        if message.tool_calls:
            turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    return turn


def text_of(content: Content | Said | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _texts(message: AnyMessage) -> list[str]:
    """The texts of a message that every template includes. White space at the ends may be stripped; of the assistant's
    messages, templates may leave out reasoning, so that only calls are certain."""
    if isinstance(message, AssistantMessage):
        return [call.function.arguments for call in message.tool_calls or ()]
    content = message.content
    return [content.strip()] if isinstance(content, str) else [part.text.strip() for part in content]


def _call(call: ToolCall) -> Turn:
    """A call as templates read it. Arguments that are not valid JSON, or were cut off, are passed on as they are."""
    written = call.function.arguments
    try:
        arguments = orjson.loads(written) if written.strip() else {}
    except orjson.JSONDecodeError:
        arguments = written
    if depth(arguments) > MAX_ARGUMENT_DEPTH:
        message = f"messages: the arguments of {call.id} may be {MAX_ARGUMENT_DEPTH} deep at most"
        raise ApiError(400, message, param="messages")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _called(messages: list[AnyMessage]) -> dict[str, str]:
    """The functions that were called, by the calls' ids."""
    calls = (call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls or ())
    return {call.id: call.function.name for call in calls}


def _beginning(tokenizer: TextTokenizer) -> list[int]:
    """The tokens that the tokenizer puts before every text."""
    whole, plain = tokenizer.encode("hello"), tokenizer.encode("hello", add_special_tokens=False)
    places = range(len(whole) - len(plain) + 1)
    return next((whole[:at] for at in places if whole[at : at + len(plain)] == plain), [])


def _shown(function: Function) -> Turn:
    """A tool as templates read it."""
    parameters = function.parameters or {"type": "object", "properties": {}}
    described = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": described}


def _with_system(turns: list[Turn], text: str) -> list[Turn]:
    """The chat with a text added to its system message."""
    if turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]
