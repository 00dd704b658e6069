"""Google's own clients of Speech-to-Text v2 and v1 against an emulator: google_speech.py ADDRESS KEY SOUND RATE

Sends a file of linear16 and prints, as JSON, what came back; then what becomes of calls that must be refused.
"""

import json
import sys

import grpc
from google.api_core import exceptions
from google.cloud import speech_v1
from google.cloud.speech_v1.services.speech import SpeechClient as ClientV1
from google.cloud.speech_v1.services.speech.transports import SpeechGrpcTransport as TransportV1
from google.cloud.speech_v2 import SpeechClient
from google.cloud.speech_v2.services.speech.transports import SpeechGrpcTransport
from google.cloud.speech_v2.types import cloud_speech as speech

address, key, path, rate = sys.argv[1:]
sound = open(path, "rb").read()
client = SpeechClient(transport=SpeechGrpcTransport(channel=grpc.insecure_channel(address)))


# Without the helper in front of it, which leaves out the metadata.
client_v1 = ClientV1(transport=TransportV1(channel=grpc.insecure_channel(address)))
metadata_v1 = [("authorization", f"Bearer {key}")]


def config_v1(model="latest_long"):
    return speech_v1.RecognitionConfig(
        encoding=speech_v1.RecognitionConfig.AudioEncoding.LINEAR16,
        sample_rate_hertz=int(rate),
        language_code="en-US",
        enable_word_time_offsets=True,
        model=model,
    )


def heard_by_v1():
    """The finals of a stream, and where its words end."""
    streaming = speech_v1.StreamingRecognitionConfig(config=config_v1(), interim_results=True)
    requests = [speech_v1.StreamingRecognizeRequest(streaming_config=streaming)]
    requests += [speech_v1.StreamingRecognizeRequest(audio_content=chunk) for chunk in chunks]
    answers = client_v1.streaming_recognize(requests=iter(requests), metadata=metadata_v1, timeout=30)
    finals, ends = [], []
    for response in answers:
        for result in response.results:
            if result.is_final:
                finals.append(result.alternatives[0].transcript)
                ends += [word.end_time.total_seconds() for word in result.alternatives[0].words]
    return {"text": "".join(finals), "ends": ends}


def whole(call):
    return "".join(result.alternatives[0].transcript for result in call.results)


def whole_by_v1(model="latest_long"):
    audio = speech_v1.RecognitionAudio(content=sound)
    try:
        return whole(client_v1.recognize(config=config_v1(model), audio=audio, metadata=metadata_v1, timeout=30))
    except exceptions.InvalidArgument as error:
        return error.message


def whole_by_v2():
    asked = first()
    request = speech.RecognizeRequest(
        recognizer=asked.recognizer, config=asked.streaming_config.config, content=sound
    )
    return whole(client.recognize(request, metadata=metadata_v1, timeout=30))


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
        "v1": heard_by_v1(),
        "v1_whole": whole_by_v1(),
        "v1_refused": whole_by_v1("chirp_3"),
        "v2_whole": whole_by_v2(),
        "bad_key": refusal(first(), chunks, "bad-key"),
        "no_key": refusal(first(), chunks, None),
        "long_chunk": refusal(first(), [b"\0" * 25602]),
        "second_config": refusal(first(), []) or refusal(first(model="nonsense"), []),
        "model_elsewhere": refusal(first(model="chirp_3", words=False), chunks),
        "word_times": refusal(first(location="eu", model="chirp_3"), chunks),
    },
    sys.stdout,
)
