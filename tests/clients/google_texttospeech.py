"""Google's own client of Text-to-Speech v1 against an emulator: google_texttospeech.py GRPC HTTP KEY FOLDER TEXT...

Says the texts by every interface of the client, leaves the sound in the folder, and prints what else it has learnt.
"""

import json
import sys

import grpc
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.cloud import texttospeech_v1 as tts
from google.cloud.texttospeech_v1.services.text_to_speech.transports import (
    TextToSpeechGrpcTransport,
)

address, http, key, folder, *texts = sys.argv[1:]
client = tts.TextToSpeechClient(
    transport=TextToSpeechGrpcTransport(channel=grpc.insecure_channel(address))
)
rest = tts.TextToSpeechClient(
    transport="rest", client_options=ClientOptions(api_endpoint=http, api_key=key)
)
metadata = [("authorization", f"Bearer {key}")]
STREAMING_VOICE, OTHER_VOICE = "en-US-Chirp3-HD-Charon", "en-US-Neural2-A"


def keep(name, audio):
    with open(f"{folder}/{name}", "wb") as file:
        file.write(audio)


def stream(voice=STREAMING_VOICE, encoding=tts.AudioEncoding.PCM, rate=24000, metadata=metadata):
    def requests():
        yield tts.StreamingSynthesizeRequest(
            streaming_config=tts.StreamingSynthesizeConfig(
                voice=tts.VoiceSelectionParams(language_code="en-US", name=voice),
                streaming_audio_config=tts.StreamingAudioConfig(
                    audio_encoding=encoding, sample_rate_hertz=rate
                ),
            )
        )
        for text in texts:
            yield tts.StreamingSynthesizeRequest(input=tts.StreamingSynthesisInput(text=text))

    answers = client.streaming_synthesize(requests(), metadata=metadata, timeout=30)
    return b"".join(answer.audio_content for answer in answers)


def whole(client, encoding, rate=24000, text=" ".join(texts), voice=OTHER_VOICE, **more):
    return client.synthesize_speech(
        input=tts.SynthesisInput(text=text),
        voice=tts.VoiceSelectionParams(language_code="en-US", name=voice),
        audio_config=tts.AudioConfig(audio_encoding=encoding, sample_rate_hertz=rate),
        timeout=30,
        **more,
    ).audio_content


def refusal(call):
    try:
        call()
    except exceptions.GoogleAPICallError as error:
        return {"error": type(error).__name__, "message": error.message}
    return None


for rate in (8000, 24000):
    keep(f"stream-{rate}.pcm", stream(rate=rate))
keep("stream.mulaw", stream(encoding=tts.AudioEncoding.MULAW, rate=8000))
keep("stream.ogg", stream(encoding=tts.AudioEncoding.OGG_OPUS))
for name, encoding, rate in (
    ("whole.wav", tts.AudioEncoding.LINEAR16, 24000),
    ("whole.mp3", tts.AudioEncoding.MP3, 24000),
    ("whole.ogg", tts.AudioEncoding.OGG_OPUS, 24000),
    ("mulaw.wav", tts.AudioEncoding.MULAW, 8000),
    ("alaw.wav", tts.AudioEncoding.ALAW, 8000),
):
    keep(name, whole(client, encoding, rate, metadata=metadata))
keep("whole.pcm", whole(client, tts.AudioEncoding.PCM, 16000, metadata=metadata))
keep("rest.wav", whole(rest, tts.AudioEncoding.LINEAR16, 16000))
bad = tts.TextToSpeechClient(
    transport="rest", client_options=ClientOptions(api_endpoint=http, api_key="bad-key")
)


def listed(voices):
    return [[v.name, list(v.language_codes), v.ssml_gender.name] for v in voices]


json.dump(
    {
        "voices": listed(client.list_voices(metadata=metadata).voices),
        "rest_voices": listed(rest.list_voices(language_code="de-DE").voices),
        "bad_key": refusal(lambda: stream(metadata=[("authorization", "Bearer bad-key")])),
        "rest_bad_key": refusal(lambda: whole(bad, tts.AudioEncoding.MP3)),
        "no_streaming": refusal(lambda: stream(voice=OTHER_VOICE)),
        "no_mp3": refusal(lambda: stream(encoding=tts.AudioEncoding.MP3)),
        "no_voice": refusal(
            lambda: whole(client, tts.AudioEncoding.MP3, voice="en-US-Nobody", metadata=metadata)
        ),
        "long_text": refusal(
            lambda: whole(client, tts.AudioEncoding.MP3, text="é" * 2501, metadata=metadata)
        ),
    },
    sys.stdout,
)
