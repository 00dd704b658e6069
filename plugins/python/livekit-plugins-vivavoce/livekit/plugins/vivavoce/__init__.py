"""Vivavoce for LiveKit Agents: hear and speak with a server of your own, by its local models or any cloud vendor.

`STT` streams transcripts and decides when a turn has ended (turn detection "stt"), `TTS` streams speech with times of words, and
`VAD` tells when somebody speaks. The server is where `VIVAVOCE_URL` says; `VIVAVOCE_API_KEY` is a token where it wants one.
"""

from livekit.agents import Plugin

from .log import logger
from .stt import STT, EndpointingOptions, SpeechStream
from .tts import TTS, ChunkedStream, SynthesizeStream
from .vad import VAD, VADStream
from .version import __version__

__all__ = [
    "STT",
    "TTS",
    "VAD",
    "ChunkedStream",
    "EndpointingOptions",
    "SpeechStream",
    "SynthesizeStream",
    "VADStream",
    "__version__",
]


class VivavocePlugin(Plugin):
    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(VivavocePlugin())
