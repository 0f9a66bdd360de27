"""An interactive chat on a terminal."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.patch_stdout import patch_stdout

from meshnet.cli.output import out, print_error, print_note
from meshnet.cli.waterfall import print_timings
from meshnet.domain.errors import DeadlineExceededError, InputError, ResourceExhaustedError
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest

HELP = "/clear starts anew, /help shows this, /exit or Ctrl-D leaves. End a line with \\ to go on."


async def chat(
    model: ChainModel, terms: TextRequest, system: str | None, *, show_timings: bool
) -> None:
    """Talk until Ctrl-D, Ctrl-C or ``/exit``; each answer within ``terms``, whatever its prompt."""
    out.print(f"[bold]{model.name}[/], context {model.context_length} tokens. {HELP}")
    first: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    messages = list(first)
    session: PromptSession[str] = PromptSession()
    while True:
        try:
            with patch_stdout():
                text = (await _read(session)).strip()
        except EOFError:
            return
        if text in ("/exit", "/quit", "/bye"):
            return
        if text == "/clear":
            messages = list(first)
            print_note("a new conversation")
        elif text.startswith("/"):
            print_note(HELP)
        elif text:
            messages.append({"role": "user", "content": text})
            with _unechoed():
                answer = await _answer(model, messages, terms, show_timings=show_timings)
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


@contextlib.contextmanager
def _unechoed() -> Iterator[None]:
    """What is typed ahead appears at the next prompt, not amid the answer."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _read(session: PromptSession[str]) -> str:
    """One entry; a line that ends in a backslash goes on in the next."""
    text = await session.prompt_async(HTML("<b>&gt;</b> "))
    while text.endswith("\\"):
        text = text[:-1] + "\n" + await session.prompt_async("  ")
    return text


async def _answer(
    model: ChainModel,
    messages: list[dict[str, object]],
    terms: TextRequest,
    *,
    show_timings: bool,
) -> str | None:
    """Stream one answer; None if it couldn't be given, and why was said."""
    parts: list[str] = []
    summary: GenerationSummary | None = None
    try:
        tokens = model.prompt_from_messages(messages)
        request = replace(terms, prompt=tokens)
        async with contextlib.aclosing(model.generate(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    parts.append(event.text)
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
                else:
                    summary = event
    except (InputError, ResourceExhaustedError, DeadlineExceededError) as error:
        print_error(f"{error.message} (/clear starts a new conversation)")
        return None
    sys.stdout.write("\n")
    if summary is not None and summary.finish_reason.value == "length":
        print_note("(cut off: the token limit or the context's end; /clear starts anew)")
    if summary is not None and show_timings:
        print_timings(summary)
    return "".join(parts)
