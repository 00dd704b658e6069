"""Vivavoce for Pipecat: hear and speak with a server of your own, by its local models or any cloud vendor.

`VivavoceSTTService` and `VivavoceTTSService` go into a pipeline with any transport. `VivavoceTransport` is a room or a telephone call
of the server, in which the server itself hears and speaks. The server is where `VIVAVOCE_URL` says; `VIVAVOCE_API_KEY` is a token
where it wants one.
"""

from ._server import EndpointingOptions
from .stt import VivavoceSTTService, VivavoceSTTSettings
from .transport import VivavoceParams, VivavoceTransport
from .tts import VivavoceTTSService, VivavoceTTSSettings

__version__ = "0.2.0"

__all__ = [
    "EndpointingOptions",
    "VivavoceParams",
    "VivavoceSTTService",
    "VivavoceSTTSettings",
    "VivavoceTTSService",
    "VivavoceTTSSettings",
    "VivavoceTransport",
    "__version__",
]
