"""What waits to be sent to the server, in order and with bounds: commands, and sound of a length at most."""

from __future__ import annotations

import asyncio
from collections import deque

from .errors import Overloaded

#: Commands that wait at most.
MAX_COMMANDS = 256


class Outbox:
    """A queue of commands (text) and sound (bytes)."""

    def __init__(self, max_audio_bytes: int) -> None:
        self._max_audio_bytes = max_audio_bytes
        self._items: deque[str | bytes] = deque()
        self._commands = 0
        self._audio_bytes = 0
        #: Sound that was dropped because it was too much, in bytes.
        self.dropped_bytes = 0
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, command: str) -> None:
        """Adds a command."""
        if self._commands >= MAX_COMMANDS:
            raise Overloaded(f"{MAX_COMMANDS} messages wait to be sent")
        self._items.append(command)
        self._commands += 1
        self._filled.set()

    def put_audio(self, sound: bytes) -> None:
        """Adds sound; the oldest gives way."""
        self._items.append(sound)
        self._audio_bytes += len(sound)
        while self._audio_bytes > self._max_audio_bytes:
            oldest = next(item for item in self._items if isinstance(item, bytes))
            self._items.remove(oldest)
            self._audio_bytes -= len(oldest)
            self.dropped_bytes += len(oldest)
        self._filled.set()

    @property
    def has_many_commands(self) -> bool:
        """Whether whoever can wait should wait, so that others find room."""
        return self._commands >= MAX_COMMANDS // 2

    @property
    def has_much_audio(self) -> bool:
        """The same for sound."""
        return self._audio_bytes > self._max_audio_bytes // 2

    async def take(self) -> str | bytes:
        """The next one, when there is one."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        item = self._items.popleft()
        self._count(item, -1)
        self._taken.set()
        return item

    def put_back(self, item: str | bytes) -> None:
        """What could not be sent is the next one again."""
        self._items.appendleft(item)
        self._count(item, 1)

    def _count(self, item: str | bytes, sign: int) -> None:
        if isinstance(item, bytes):
            self._audio_bytes += sign * len(item)
        else:
            self._commands += sign

    async def changed(self) -> None:
        """Waits until something was taken, or `wake` is called."""
        self._taken.clear()
        await self._taken.wait()

    def wake(self) -> None:
        """Lets go who waits."""
        self._taken.set()

    def __len__(self) -> int:
        return len(self._items)
