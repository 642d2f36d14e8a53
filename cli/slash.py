"""The commands of a chat, `/strict 1.5` and the like: their names, what each does, and what is near a wrong name."""

import dataclasses
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diversed_mlx.cli.dial import MEANING, describe
from diversed_mlx.cli.last import show_last
from diversed_mlx.cli.options import note
from diversed_mlx.cli.printer import count, summary
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.cli.session import Session

HELP = "q leaves, r forgets the conversation, h shows this; Ctrl-C stops an answer, Ctrl-D leaves; /help tells more"
# A path such as /etc/hosts is a message; so is anything behind a space.
SLASH = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        names: the full name and others.
        argument: what may follow it, for the help; empty where nothing may.
        what: what it does.
        act: does it.
    """

    names: tuple[str, ...]
    argument: str
    what: str
    act: "Callable[[Session, str], None]"


class Leave(Exception):
    """The person wants to go."""


def run_command(session: "Session", message: str) -> bool:
    """Do what a message asks for, if it is a command.

    Returns:
        Whether it was one.

    Raises:
        Leave: the chat is to end.
    """
    found = SLASH.fullmatch(message.rstrip())
    name = {"q": "/quit", "r": "/clear", "h": "/help"}.get(message) or (f"/{found[1]}" if found else None)
    if name is None:
        return False
    argument = (found[2] or "").strip() if found else ""
    command = next((command for command in COMMANDS if name.lower() in command.names), None)
    try:
        if command is None:
            raise DiversedError(_unknown(name))
        if argument and not command.argument:
            raise DiversedError(f"{name} takes nothing behind it")
        command.act(session, argument)
    except DiversedError as error:
        note(f"error: {error}")
    return True


def _unknown(name: str) -> str:
    names = [name for command in COMMANDS for name in command.names]
    begun = [other for other in names if other.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "/help lists what there is"
    return f"there is no command {name}: {hint} (a space before it makes it a message)"


def _strict(session: "Session", argument: str) -> None:
    from diversed_mlx.verifiers import Dynamic

    options = session.conversation.options
    if not isinstance(options.verifier, Dynamic):
        name = type(options.verifier).__name__.lower()
        how = "the target decodes alone" if options.verifier is None else f"verification is {name}"
        raise DiversedError(f"there is no dial here, for {how}: start the chat with --head")
    verifier = options.verifier
    if argument:
        try:
            strictness = float(argument)
        except ValueError as error:
            raise DiversedError(f"{argument} is not a number: {MEANING}") from error
        verifier = dataclasses.replace(verifier, strictness=strictness)
        session.conversation.options = dataclasses.replace(options, verifier=verifier)
    for line in describe(verifier):
        note(line)
    if not argument:
        note(f"/strict NUMBER changes it: {MEANING}")


def _stats(session: "Session", argument: str) -> None:
    if not session.totals.answers:
        raise DiversedError("there is no answer yet")
    note(f"session: {session.totals.line()}")
    if session.last:
        note(f"last answer: {summary(session.last[-1].stats)}")


def _last(session: "Session", argument: str) -> None:
    if not session.last:
        raise DiversedError("there is no answer yet")
    if argument and not (argument.isascii() and argument.isdigit() and 1 <= int(argument[:9]) <= len(session.last)):
        raise DiversedError(f"{argument} is not the number of a token: the answer has 1 to {len(session.last)}")
    show_last(session.last, session.conversation.pair.tokenizer, int(argument or 1))


def _save(session: "Session", argument: str) -> None:
    if not argument:
        raise DiversedError("name the file: /save FILE")
    session.conversation.transcript().write(argument)
    note(f"saved {_turns(session)} in {argument}")


def _load(session: "Session", argument: str) -> None:
    from diversed_mlx.transcript import Transcript

    if not argument:
        raise DiversedError("name the file: /load FILE")
    session.conversation.restore(Transcript.read(argument))
    note(f"loaded {_turns(session)} from {argument}, in place of what was said here")


def _turns(session: "Session") -> str:
    system = "no system prompt" if session.conversation.system is None else "the system prompt"
    return f"{count(len(session.conversation.messages) // 2, 'turn')} and {system}"


def _system(session: "Session", argument: str) -> None:
    conversation = session.conversation
    if argument:
        conversation.set_system(None if argument == "-" else argument)
        kept = "; what was said stays (/clear forgets it)" if conversation.messages else ""
        note(f"the system prompt is {'gone' if argument == '-' else 'changed'}{kept}")
    elif conversation.system is None:
        note("there is no system prompt: /system TEXT sets one")
    else:
        note(f"system prompt: {conversation.system}")


def _clear(session: "Session", argument: str) -> None:
    session.conversation.reset()
    note("the conversation is forgotten")


def _help(session: "Session", argument: str) -> None:
    note(HELP)
    for command in COMMANDS:
        note(f"  {' '.join([', '.join(command.names), command.argument]).strip():<24} {command.what}")
    note('a line that ends in \\ goes on in the next; """ begins and ends a message of several lines')


def _quit(session: "Session", argument: str) -> None:
    raise Leave


COMMANDS = (
    Command(("/strict",), "[NUMBER]", f"the dial of the head: {MEANING}", _strict),
    Command(("/stats",), "", "figures of the session and of the last answer", _stats),
    Command(("/last",), "[TOKEN]", "the last answer token by token, from the first or from that one", _last),
    Command(("/save",), "FILE", "write the conversation to a file", _save),
    Command(("/load",), "FILE", "go on with a conversation from a file", _load),
    Command(("/system",), "[TEXT]", "show or change the system prompt and keep what was said; - removes it", _system),
    Command(("/clear",), "", "forget the conversation, as r does; the system prompt stays", _clear),
    Command(("/help", "/?"), "", "this list, as h does", _help),
    Command(("/quit", "/exit"), "", "leave, as q does", _quit),
)
