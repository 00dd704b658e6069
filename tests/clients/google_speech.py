"""Google's own client of Speech-to-Text v2 against an emulator: google_speech.py ADDRESS KEY SOUND RATE

Sends a file of linear16 and prints, as JSON, what came back; then what becomes of calls that must be refused.
"""

import json
import sys

import grpc
from google.api_core import exceptions
from google.cloud.speech_v2 import SpeechClient
from google.cloud.speech_v2.services.speech.transports import SpeechGrpcTransport
from google.cloud.speech_v2.types import cloud_speech as speech

address, key, path, rate = sys.argv[1:]
sound = open(path, "rb").read()
client = SpeechClient(transport=SpeechGrpcTransport(channel=grpc.insecure_channel(address)))


def first(location="global", model="latest_long", words=True):
    config = speech.RecognitionConfig(
        explicit_decoding_config=speech.ExplicitDecodingConfig(
            encoding=speech.ExplicitDecodingConfig.AudioEncoding.LINEAR16,
            sample_rate_hertz=int(rate),
            audio_channel_count=1,
        ),
        model=model,
        language_codes=["en-US"],
        features=speech.RecognitionFeatures(
            enable_word_time_offsets=words, enable_automatic_punctuation=True
        ),
    )
    streaming = speech.StreamingRecognitionConfig(
        config=config,
        streaming_features=speech.StreamingRecognitionFeatures(
            interim_results=True, enable_voice_activity_events=True
        ),
    )
    return speech.StreamingRecognizeRequest(
        recognizer=f"projects/p/locations/{location}/recognizers/_", streaming_config=streaming
    )


def call(config, chunks, credential=key):
    metadata = [("authorization", f"Bearer {credential}")] if credential else []
    requests = [config] + [speech.StreamingRecognizeRequest(audio=chunk) for chunk in chunks]
    return client.streaming_recognize(requests=iter(requests), metadata=metadata, timeout=30)


def refusal(config, chunks, credential=key):
    try:
        for _ in call(config, chunks, credential):
            pass
    except exceptions.GoogleAPICallError as error:
        details = [str(detail) for detail in error.details]
        return {"error": type(error).__name__, "message": error.message, "details": details}
    return None


events, interims, finals, words = [], 0, [], []
chunks = [sound[at : at + 12800] for at in range(0, len(sound), 12800)]
for response in call(first(), chunks):
    if response.speech_event_type:
        events.append(response.speech_event_type.name)
    for result in response.results:
        best = result.alternatives[0]
        if not result.is_final:
            interims += 1
            continue
        finals.append(best.transcript)
        for word in best.words:
            start, end = word.start_offset.total_seconds(), word.end_offset.total_seconds()
            words.append([word.word, start, end])

json.dump(
    {
        "events": events,
        "interims": interims,
        "text": "".join(finals),
        "words": words,
        "bad_key": refusal(first(), chunks, "bad-key"),
        "no_key": refusal(first(), chunks, None),
        "long_chunk": refusal(first(), [b"\0" * 25602]),
        "second_config": refusal(first(), []) or refusal(first(model="nonsense"), []),
        "model_elsewhere": refusal(first(model="chirp_3", words=False), chunks),
        "word_times": refusal(first(location="eu", model="chirp_3"), chunks),
    },
    sys.stdout,
)
