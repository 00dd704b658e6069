"""Azure's own client for Python: `azure_speech.py recognise|synthesise|stream|voices HOST KEY ...`, results as JSON."""

import json
import os
import sys
import threading

import azure.cognitiveservices.speech as speech

FORMATS = speech.SpeechSynthesisOutputFormat


def error(details):
    return {"code": details.code.name, "details": details.error_details}


def recognise(config, sound_file, words="0", *phrases):
    """Sends 16 kHz linear16 and tells what is understood until the sound is over, which is when so many words have come."""
    config.output_format = speech.OutputFormat.Detailed
    config.request_word_level_timestamps()
    sound = speech.audio.PushAudioInputStream(speech.audio.AudioStreamFormat(16000, 16, 1))
    recogniser = speech.SpeechRecognizer(config, speech.audio.AudioConfig(stream=sound))
    for phrase in phrases:
        speech.PhraseListGrammar.from_recognizer(recogniser).addPhrase(phrase)
    result = {"partials": [], "finals": [], "words": [], "error": None}
    over = threading.Event()
    enough = threading.Event()

    def recognised(event):
        best = json.loads(event.result.json).get("NBest", [{}])[0]
        result["words"] += [[w["Word"], w["Offset"], w["Duration"]] for w in best.get("Words", [])]
        if event.result.text:
            result["finals"].append([event.result.text, event.result.offset, event.result.duration])
        if len(result["words"]) >= int(words):
            enough.set()

    def canceled(event):
        if event.cancellation_details.reason == speech.CancellationReason.Error:
            result["error"] = error(event.cancellation_details)
        enough.set()
        over.set()

    recogniser.recognizing.connect(lambda event: result["partials"].append(event.result.text))
    recogniser.recognized.connect(recognised)
    recogniser.canceled.connect(canceled)
    recogniser.session_stopped.connect(lambda event: over.set())
    recogniser.start_continuous_recognition()
    with open(sound_file, "rb") as file:
        sound.write(file.read())
    if int(words) > 0:
        enough.wait(30)
    sound.close()
    result["over"] = over.wait(30)
    if not result["error"]:
        # After a failure this would wait for ten seconds.
        recogniser.stop_continuous_recognition()
    return result


def synthesise(config, text, sound_format, sound_file, pieces=False):
    config.set_speech_synthesis_output_format(FORMATS[sound_format])
    synthesiser = speech.SpeechSynthesizer(config, None)
    words = []

    def boundary(event):
        if event.boundary_type == speech.SpeechSynthesisBoundaryType.Word:
            words.append([event.text, event.audio_offset])

    # Events come after the result, from another thread.
    told = threading.Event()
    synthesiser.synthesis_word_boundary.connect(boundary)
    synthesiser.synthesis_completed.connect(lambda event: told.set())
    synthesiser.synthesis_canceled.connect(lambda event: told.set())
    if pieces:
        request = speech.SpeechSynthesisRequest(
            input_type=speech.SpeechSynthesisRequestInputType.TextStream
        )
        task = synthesiser.speak_async(request)
        for word in text.split():
            request.input_stream.write(word + " ")
        request.input_stream.close()
        result = task.get()
    else:
        result = synthesiser.speak_text_async(text).get()
    told.wait(30)
    with open(sound_file, "wb") as file:
        file.write(result.audio_data)
    details = result.cancellation_details
    return {"reason": result.reason.name, "words": words, "error": details and error(details)}


def voices(config):
    result = speech.SpeechSynthesizer(config, None).get_voices_async().get()
    return {
        "voices": [[voice.short_name, voice.locale, voice.gender.name] for voice in result.voices],
        "error": result.error_details,
    }


def main(action, address, key, *arguments):
    # An address with a path is an endpoint, one without is a host.
    path = address.split("/")[3:]
    place = {"endpoint": address} if any(path) else {"host": address}
    config = speech.SpeechConfig(subscription=key, **place)
    config.speech_recognition_language = "en-US"
    if action == "recognise":
        return recognise(config, *arguments)
    if action == "voices":
        return voices(config)
    return synthesise(config, *arguments, pieces=action == "stream")


print(json.dumps(main(*sys.argv[1:])), flush=True)
# What the library leaves open it would wait for.
os._exit(0)
