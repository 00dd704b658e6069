"""A conversation that every agent here must be able to hold: it greets, answers, and stops when somebody speaks."""

import asyncio

from harness import SENTENCE, STORY, share, words

GREETING = "Hello, how can I help you?"


async def tells(chat, person, text, word=""):
    """Says something until it is understood in one turn, this word of it at any rate: a busy machine makes holes in a microphone's
    sound, in which a sentence falls into two turns."""
    before = len(chat.requests)
    for _ in range(4):
        await person.say(text)
        for _ in range(100):
            new = [chat.said(request[-1]) for request in chat.requests[before:] if request[-1]["role"] == "user"]
            if any(share(text, said) >= 0.6 and word in said.lower() for said in new):
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"{text!r} was not understood: {chat.requests[before:]}")


async def converse(test, chat, person):
    await person.hears(GREETING, 0)
    since = len(person.heard)
    await tells(chat, person, SENTENCE)
    await person.hears("You said please call me", since)

    # A story of a minute and a half, in which somebody speaks.
    since = len(person.heard)
    await tells(chat, person, "Tell me a long story.", "story")
    await person.hears("There is a letter for you on the kitchen table", since)
    # What follows the word would interrupt the answer where it is a turn of its own.
    await tells(chat, person, "This afternoon we are going to the market.", "market")
    since = max(0, len(person.heard) - 4 * person.rate)
    heard = await person.hears("You said we are going to the market", since, 0.5)
    test.assertLess(words(heard).count("kitchen"), 3, heard)

    # What the model is told that it said is what was heard of it.
    told = [chat.said(message) for message in chat.requests[-1] if message["role"] == "assistant"]
    test.assertTrue(any(said.startswith("You said") for said in told), told)
    stories = [said for said in told if said.startswith("There is")]
    test.assertTrue(stories, told)
    test.assertTrue(all(len(story) < len(STORY) / 2 for story in stories), stories)
