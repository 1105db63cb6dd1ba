"""A conversation in the terminal, or line by line through a pipe."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from stridelm.chat.conversation import Conversation, Turn
from stridelm.chat.questions import LEAVING, QUOTES
from stridelm.chat.screen import Screen, details, stride_bars, summary
from stridelm.chat.speaker import Report, Speaker, total
from stridelm.params import InputError
from stridelm.settings import DECODERS


class _Leave(Exception):
    """/bye."""


@dataclass(slots=True)
class Chat:
    """The loop, and the commands that the user may type."""

    speaker: Speaker
    screen: Screen
    conversation: Conversation
    reports: list[Report] = field(default_factory=list)
    """Reports on all answers so far, including those that were taken back."""

    def run(self) -> None:
        """Answer question after question. If the input is not a terminal, the first error ends the loop, and so does
        Ctrl-C."""
        for line in self.screen.questions(completions):
            try:
                self._take(line)
            except _Leave:
                return
            except KeyboardInterrupt:  # while something is loaded, say, or a server is silent
                if not self.screen.is_interactive:
                    raise
                self.screen.tell(f"stopped; {LEAVING}")
            except InputError as error:
                if not self.screen.is_interactive:
                    raise
                self.screen.tell(f"stridelm: {' '.join(str(error).split())}")

    def _take(self, line: str) -> None:
        if not line.startswith("/"):
            if line.strip():
                self._answer(self.conversation.ask(line.strip()))
            return
        name, _, argument = line.partition(" ")
        name = ALIASES.get(name, name)
        command = COMMANDS.get(name)
        if command is None:
            raise InputError(f"there is no command {name}: /help lists them; a space before the line sends it as it is")
        argument = argument.strip()
        if argument and not command.takes:
            raise InputError(f"{name} takes nothing after it")
        command.run(self, argument)

    def _answer(self, turn: Turn) -> None:
        dropped = self.speaker.shorten(self.conversation)
        if dropped:
            turns = "turn" if dropped == 1 else f"{dropped} turns"
            self.screen.tell(f"the conversation outgrew the context: its oldest {turns} dropped")
        written = ""
        report: Report | None = None
        try:
            with closing(self.speaker.ask(self.conversation.messages())) as reply:
                try:
                    for piece in reply:
                        written += piece  # before it is shown: what the user saw is part of the conversation
                        self.screen.show(piece)
                except KeyboardInterrupt:
                    turn.is_interrupted = True
                report = reply.report()
            # An answer that was interrupted before its first piece counts as none.
            turn.answer = None if turn.is_interrupted and not written else written
            self.reports.append(report)
        finally:
            self.screen.end_answer(report, is_interrupted=turn.is_interrupted)
        if turn.is_interrupted and not self.screen.is_interactive:
            raise KeyboardInterrupt  # Ctrl-C ends a script as a whole, not one of its answers

    # The commands

    def help(self, _: str) -> None:
        for name, command in COMMANDS.items():
            self.screen.tell(f"{f'{name} {command.takes}':<16} {command.what}")
        self.screen.tell(f"{LEAVING}. {QUOTES} before and after a text of several lines.")
        self.screen.tell("A space before a line sends it as it is. Arrow keys bring back what was typed before.")

    def clear(self, _: str) -> None:
        self.conversation.turns.clear()
        self.screen.tell("all turns forgotten")

    def system(self, text: str) -> None:
        self.conversation.system = text or None
        self.screen.tell("from now on with this system message" if text else "from now on without a system message")

    def undo(self, _: str) -> None:
        self.screen.tell(f"taken back: {self.conversation.undo().question}")

    def retry(self, _: str) -> None:
        self._answer(self.conversation.ask(self.conversation.undo().question))

    def decoder(self, name: str) -> None:
        if name:
            self.speaker.decode_by(name)
        chosen = self.speaker.decoder or "as the server chooses"
        self.screen.tell(f"decoder: {chosen}; known: {', '.join(DECODERS)}")

    def stats(self, _: str) -> None:
        self.screen.tell(self.speaker.description)
        if not self.reports:
            self.screen.tell("no answers yet")
            return
        together = total(self.reports)
        self.screen.tell(f"{len(self.reports)} answers: {summary(together)}")
        if bars := stride_bars(together):
            self.screen.tell("\n".join(["tokens of a forward, and how many forwards brought so many:", *bars]))
        if lines := details(self.reports[-1]):
            self.screen.tell("\n".join(["the last answer:", *(f"  {line}" for line in lines)]))

    def save(self, name: str) -> None:
        if not name:
            raise InputError("/save needs the name of a file")
        try:
            file = Path(name).expanduser()
        except RuntimeError as error:
            raise InputError(f"{name}: there is no such home folder") from error
        self.screen.tell(f"{self.conversation.save(file)} messages in {file}")

    def bye(self, _: str) -> None:
        raise _Leave


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is not for the model."""

    run: Callable[[Chat, str], None]
    what: str
    takes: str = ""
    """The name of its argument; empty if it takes none."""


COMMANDS = {
    "/help": Command(Chat.help, "This list."),
    "/clear": Command(Chat.clear, "Forget all turns."),
    "/system": Command(Chat.system, "Change the system message; without TEXT there is none.", "TEXT"),
    "/undo": Command(Chat.undo, "Take the last question and its answer back."),
    "/retry": Command(Chat.retry, "Ask the last question again."),
    "/decoder": Command(
        Chat.decoder, "Decode by this one, without further settings; without NAME, say by which.", "NAME"
    ),
    "/stats": Command(Chat.stats, "What the answers cost, and how long the strides were."),
    "/save": Command(Chat.save, "Write the messages to a new file, as JSON lines.", "FILE"),
    "/bye": Command(Chat.bye, "Leave."),
}
ALIASES = {"/?": "/help", "/exit": "/bye", "/quit": "/bye"}
"""As other chats name them."""


def completions(line: str) -> list[str]:
    """The commands, and decoders, that a line can become."""
    known = [f"{name} " if command.takes else name for name, command in COMMANDS.items()]
    known += [f"/decoder {name}" for name in DECODERS] if line.startswith("/decoder ") else []
    return [each for each in known if each.startswith(line) and line.startswith("/")]
